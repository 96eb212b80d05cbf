;;;; The page, and how it looks in a browser: Chromium without a window, which browser.mjs drives.
;;;; The environment variable CLGRPC_PICTURES names a directory for pictures of what is looked at.

(in-package #:clgrpc.tests.page)

(defun look-with-browser (page name)
  "What a browser has seen of PAGE, a string, as JSON. NAME begins the names of pictures."
  (uiop:with-temporary-file (:stream stream :pathname path :type "html" :external-format :utf-8)
    (write-string page stream)
    (close stream)
    (base:parse-json
     (support:look-with-browser "tests/tools/page/browser.mjs"
                                (format nil "file://~A" (uiop:native-namestring path))
                                (or (uiop:getenvp "CLGRPC_PICTURES") "") name))))

(defun check-page (seen)
  "Check that SEEN, from LOOK-WITH-BROWSER, is a page that can be read and that asks for nothing."
  (flet ((seen (name) (cdr (assoc name seen :test #'string=))))
    (is (equalp #() (seen "errors")))
    (is (= 1 (length (seen "requests"))) "It asks elsewhere: ~S" (seen "requests"))
    (is (string= "CSS1Compat" (seen "mode")))
    (is (equalp #() (seen "nameless")))
    (is (equalp #() (seen "faint")))
    (loop for (how . excess) in (seen "wide")
          do (is (<= excess 0) "The page is wider than the window: ~A" how))
    (dolist (name '("small" "overlaps"))
      (is (= 4 (length (seen name))))
      (loop for (how . texts) in (seen name)
            do (is (equalp #() texts) "~A, ~A: ~S" name how texts)))))

(defun page-of (sections)
  (with-output-to-string (stream)
    (page:write-page stream "A <title>" "What it is of" sections)))

(test what-a-page-consists-of
  (let ((text (page-of (list (page:tiles '(("Calls" "5") ("Failed" "1" "bad")))
                             (page:card "Some" '("text") :half t :note "a note")
                             (page:table '(("Name") ("n" :number) ("more" :text :wide))
                                         '(("a" 1 (:cell "bad" "b"))))
                             (page:facts '(("Target" "x")))))))
    (loop for part in '("<!doctype html>" "<title>A &lt;title&gt;</title>" 
                        "<dd class=\"bad\">1</dd>"
                        "<section class=\"card half\">" "<p class=\"note\">a note</p>"
                        "<td class=\"n\">1</td>" "<td class=\"text wide bad\">b</td>"
                        "<dt>Target</dt><dd>x</dd>" "prefers-color-scheme: dark")
          do (is (search part text) "~A is missing" part))
    (is (null (search "http" text)) "it has no address")))

(test a-browser-shows-it
  (let* ((x (page:linear-scale 0 10)) (y (page:log-scale 1 1000))
         (seen (look-with-browser
                (page-of (list (page:card "A chart"
                                          (list (page:chart "A line."
                                                            (list (page:line-layer
                                                                   '((0 . 1) (10 . 900)) x y "p50"))
                                                            :x x :y y)
                                                (page:legend '("p50" . "median"))))))
                "page")))
    (when seen
      (check-page seen)
      (is (equalp #("A <title>" "A chart") (cdr (assoc "headings" seen :test #'string=))))
      (is (equalp #("A line.") (cdr (assoc "charts" seen :test #'string=)))))))
