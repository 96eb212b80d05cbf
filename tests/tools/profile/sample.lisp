;;;; What perf script prints of samples.

(in-package #:clgrpc.tests.profile)

(defun lines (&rest lines)
  (make-string-input-stream (format nil "~{~A~%~}" lines)))

(defun symbolizer ()
  "One who knows a program with two functions, the second at an address."
  (profile::make-symbolizer
   :program "/opt/clgrpc"
   :functions (profile::rows-ranges (list (list #x37ecd00 64 'profile::find-range)))
   :made (profile::rows-ranges (list (list #x1001000 16 "made while it ran")
                                     (list #x52a00010 16 "compiled since")))
   :mappings (list (profile::make-mapping :start #x52a00000 :end #x53e20000 :offset #x3718000
                                          :path "/opt/clgrpc"))))

(defun recorded-samples ()
  (lines "12540 47548.181693: "
         "	ffffffff815e9cba do_anonymous_page ([kernel.kallsyms])"
         "	         37ecd08 [unknown] (/opt/clgrpc)"
         "	           4baf1 call_into_lisp_ (/opt/clgrpc)"
         ""
         "12541 47548.182742: "
         "	         1001008 [unknown] (//anon)"
         "	          891f5 [unknown] (/usr/lib/x86_64-linux-gnu/libc.so.6)"
         ""
         "12541 47548.190000: "
         "	         3718011 [unknown] (/opt/clgrpc (deleted))"
         "	         3718111 [unknown] (/opt/clgrpc)"))

(test samples
  (let ((found '()))
    (profile::map-samples (lambda (tid ns frames)
                            (push (list* tid ns (mapcar #'profile::frame-name frames)) found))
                          (recorded-samples) (symbolizer))
    (is (equal '((12540 47548181693000 "do_anonymous_page" "clgrpc.profile::find-range"
                  "call_into_lisp_")
                 (12541 47548182742000 "made while it ran" "libc.so.6")
                 (12541 47548190000000 "compiled since" "(unknown)"))
               (reverse found)))))

(test a-program-without-a-map-has-no-names
  (let ((symbolizer (profile::make-symbolizer :program "/opt/other")))
    (is (null (profile::lisp-name symbolizer 5 t)))
    (is (null (profile::lisp-name symbolizer 5 nil)))
    (is (equal "(unknown)" (profile::frame-name (profile::name-frame symbolizer 5 "[unknown]"
                                                                     "/opt/other"))))))

(test sums-of-samples
  (let ((sums (profile::sum-samples (recorded-samples) (symbolizer) 0 47548185000000000)))
    (is (= 3 (profile::sums-samples sums)))
    (is (= 7 (profile::sums-frames sums)))
    (is (= 1 (profile::sums-unknown-frames sums)))
    (is (= 0 (profile::sums-unknown-samples sums)))
    (is (= 1 (gethash "kernel: memory" (profile::sums-areas sums))))
    (is (= 2 (gethash 12541 (profile::sums-threads sums))))
    (is (= 3 (profile::node-samples (profile::sums-root sums))))
    ;; nodes with just enough samples are shown
    (loop for (least count) in '((1 3) (2 0))
          for data = (profile::node-data (profile::sums-root sums) 1 least)
          do (is (= count (length (cdr (assoc "children" data :test #'equal)))))))
  (is (= 2 (profile::sums-samples (profile::sum-samples (recorded-samples) (symbolizer) 0
                                                        47548185000000)))
      "the last came later"))

(test recursive-functions-count-once
  "A function that is in a stack several times is in one sample."
  (let ((sums (profile::make-sums))
        (inner (profile::make-lisp-frame "clgrpc.loop::run-turn"))
        (outer (profile::make-lisp-frame "clgrpc.loop::run-loop")))
    (profile::add-sample sums "t" (list inner outer inner))
    (dolist (frame (list inner outer))
      (is (= 1 (gethash (profile::frame-name frame) (profile::sums-whole sums)))))
    (is (= 1 (gethash (profile::frame-name inner) (profile::sums-own sums))))
    (is (null (gethash (profile::frame-name outer) (profile::sums-own sums))))))
