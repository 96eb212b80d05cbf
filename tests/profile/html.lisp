;;;; Profiles as pages.

(in-package #:clgrpc.tests.profile)
(in-suite :clgrpc.profile)

(defun node (name area ns &rest children)
  `(("name" . ,name) ("area" . ,area) ("ns" . ,ns)
    ,@(when children `(("children" . ,(coerce children 'vector))))))

(defun flame-text (root)
  (clgrpc.page:markup-text (profile::flame-graph root "all")))

(test flames
  (let ((text (flame-text (node "all" :null 1000
                                (node "a < b" "http2" 750 (node "leaf" "kernel: tcp" 250))
                                (node "short" "server" 240)
                                (node "too short to be seen" "server" 1/2)))))
    (is (search "height=\"51\"" text) "three frames lie above each other")
    (is (search "a &lt; b, http2: " text))
    (is (search "75.0 %" text))
    (is (search "x=\"75.000%\"" text) "who comes next stands behind")
    (is (not (search "too short" text))))
  (is (search "flame" (flame-text (node "all" :null 0)))))

(test pages
  (let ((text (with-output-to-string (stream)
                (profile:write-profile-page
                 (append (some-profile) '(("command" . #("serve" "<bench>"))))
                 stream :before (some-profile :server-ns 50000000)))))
    (dolist (part '("Profile of clgrpc serve &lt;bench&gt;" "CPU by subsystem" "http2"
                    "Before and after" "more" "class=\"flame\""))
      (is (search part text) "~A is missing" part))
    (dolist (part '("http://" "https://" "src="))
      (is (not (search part text)) "the page asks for ~A" part))))

(test scripts-and-styles-need-no-escapes
  "Text of a page is escaped, that of its script as well."
  (dolist (text (list profile::*flame-script* profile::*flame-style*))
    (is (null (find-if (lambda (char) (find char "<>&\"")) text)))))
