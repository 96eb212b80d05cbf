;;;; The whole site: every public name, every chapter, links, and what a browser says of each page.

(in-package #:clgrpc.tests.manual)

(defun call-with-site (function)
  "Call FUNCTION with the directory of a manual, which is deleted afterwards."
  (support:need-program "cmark-gfm")
  (let ((directory (uiop:ensure-directory-pathname
                    (uiop:run-program (list "mktemp" "-d" "-t" "clgrpc-manual-XXXXXX")
                                      :output (list :string :stripped t)))))
    (unwind-protect
         (progn (manual:write-manual directory)
                (funcall function directory))
      (uiop:delete-directory-tree directory :validate t))))

(defmacro with-site ((directory) &body body)
  `(call-with-site (lambda (,directory) ,@body)))

(defun page-paths (directory)
  (directory (merge-pathnames "**/*.html" directory)))

(defun matches (pattern text)
  (let ((found '()))
    (ppcre:do-register-groups (group) (pattern text) (push group found))
    (nreverse found)))

(defun page-reader ()
  "A function that returns the text of the file at a path, and reads each file once."
  (let ((texts (make-hash-table :test 'equal)))
    (lambda (path)
      (let ((name (namestring path)))
        (or (gethash name texts)
            (setf (gethash name texts) (uiop:read-file-string path)))))))

(defun dead-links (path directory &optional (reader (page-reader)))
  "The links of the page at PATH that lead to nothing in the site in DIRECTORY, whose files READER
reads."
  (loop for link in (matches "(?:href|src)=\"([^\"]*)\"" (funcall reader path))
        for (file fragment) = (uiop:split-string link :separator "#")
        for target = (if (string= "" file) path (merge-pathnames file path))
        unless (or (ppcre:scan "^(https?|data):" link)
                   (and (probe-file target)
                        (uiop:subpathp (truename target) (truename directory))
                        (or (null fragment)
                            (search (format nil " id=\"~A\"" fragment)
                                    (funcall reader (truename target))))))
          collect link))

(test every-public-name-has-an-entry
  "Each export of each public package has an entry with a subject and something that is said of it."
  (let ((entries (manual:collect-entries)))
    (is (null (remove-if #'manual::entry-subject entries)))
    (is (null (remove-if #'manual::entry-meanings entries)))
    (dolist (package manual::*packages*)
      (dolist (symbol (manual:package-entries package))
        (is (find symbol entries :key #'manual:entry-symbol) "~S has no entry" symbol)))))

(test keywords-have-rows-and-defaults
  "START-SERVER's keywords are listed one by one, with the options that it takes beside them."
  (let* ((entry (find 'clgrpc:start-server (manual:collect-entries) :key #'manual:entry-symbol))
         (meaning (first (manual::entry-meanings entry)))
         (loops (find ":loops" (manual::meaning-keywords meaning)
                      :key #'manual:keyword-row-name :test #'string=))
         (options (mapcar #'manual:keyword-row-name (manual::meaning-options meaning))))
    (is (string= "1" (manual::keyword-row-default loops)))
    (is (search "event loops" (manual:keyword-row-text loops)))
    (is (member ":max-receive-octets" options :test #'string=))
    (is (not (member ":share-connections" options :test #'string=)) "that is a channel's")))

(test every-chapter-is-in-the-manual
  "The files below doc/ and the chapters of the manual are the same."
  (let ((there (loop for path in (directory (support:root-file "doc/**/*.md"))
                     collect (enough-namestring path (truename (support:root-file "doc/"))))))
    (is (null (set-exclusive-or there (manual:chapter-paths) :test #'string=)))))

(test no-link-is-dead
  "Each link of each page leads to a page, and to a place in it, of the site."
  (with-site (directory)
    (is (< 60 (length (page-paths directory))))
    (loop with reader = (page-reader)
          for path in (page-paths directory)
          do (let ((dead (dead-links path directory reader)))
               (is (null dead) "~A: ~{~A~^ ~}" (pathname-name path) dead)))))

(test a-link-to-nothing-is-an-error
  "Making the manual fails for a link of a chapter to a file that is not there."
  (let ((manual::*root* (truename (support:root-file "")))
        (manual::*files* (make-hash-table :test 'equal)))
    (is (string= "../chapters/calls.html#x"
                 (manual::link-target "../calls.md#x" "doc/etcd/" "../")))
    (signals error (manual::link-target "nowhere.md" "doc/" "../"))))

(test a-browser-shows-every-page
  "No page has an error, is wider than the window at 1280 and 400 pixels, or has text that is faint;
the search finds an entry by its name and a section by its words."
  (with-site (directory)
    (let* ((root (uiop:native-namestring directory))
           (seen (base:parse-json
                  (apply #'support:look-with-browser "tests/tools/manual/browser.mjs"
                         (format nil "file://~A" root)
                         (or (uiop:getenvp "CLGRPC_PICTURES") "")
                         (loop for path in (page-paths directory)
                               unless (search "/files/" (namestring path))
                                 collect (subseq (uiop:native-namestring path) (length root)))))))
      (flet ((seen (name) (cdr (assoc name seen :test #'string=))))
        (dolist (name '("errors" "wide" "faint" "requests"))
          (is (equalp #() (seen name)) "~A: ~S" name (seen name)))
        (is (search "reference/servers.html#start-server" (seen "found")))
        (is (search "chapters/" (seen "foundSection")))))))
