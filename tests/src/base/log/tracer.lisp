;;;; Tracers: switching them, and that tracers that are off cost nothing.

(in-package #:clgrpc.tests.base)

(defmacro with-tracers-kept (&body body)
  `(let ((before (tracers)))
     (unwind-protect (progn ,@body)
       (setf (tracers) before))))

(defun all-tracers () (mapcar #'tracer-name (tracer-table)))

(test tracers-are-switched-as-grpc-has-it
  (with-tracers-kept
    (flet ((on (names) (setf (tracers) names) (tracers)))
      (is (null (on "")))
      (is (equal '(:http) (on "http")))
      (is (equal '(:http) (on '(:http))))
      (is (equal '(:call :connectivity-state) (on " call , connectivity_state")))
      (is (equal '(:connectivity-state) (on '(:connectivity-state))))
      (is (equal (all-tracers) (on "all")))
      (is (equal (set-difference (all-tracers) '(:http :tcp)) (reverse (on "all,-http,-tcp"))))
      (is (equal '(:tcp) (on "all,none,tcp")))
      (is (equal '(:http :http-keepalive) (on "http*")))
      (is (equal '(:handshaker) (on "tsi")) "tsi is another name of the tracer")
      (is (equal '(:call) (on "CALL")))
      (signals misuse (setf (tracers) "call,nonsense"))
      (is (equal '(:call) (tracers)) "the wrong text has changed nothing"))))

(test tracers-tell-the-log
  (with-tracers-kept
    (let* ((events '()) (evaluated 0)
           (*log-function* (lambda (&rest event) (push event events))))
      (flet ((tell () (trace-event :call :seen :number (incf evaluated))))
        (setf (tracers) "all,-call")
        (tell)
        (is (zerop evaluated))
        (is (null events))
        (setf (tracers) "call")
        (tell)
        (is (equal '((:trace :seen :tracer :call :number 1)) events))))))

(test tracers-that-are-off-cost-nothing
  (with-tracers-kept
    (setf (tracers) '())
    (flet ((tell () (loop repeat 100000 do (trace-event :http :never :list (list 1 2 3)))))
      (tell)
      (is (zerop (loop repeat 5
                       minimize (let ((before (sb-ext:get-bytes-consed)))
                                  (tell)
                                  (- (sb-ext:get-bytes-consed) before))))))))

(test tracers-have-meanings
  (dolist (tracer (tracer-table))
    (is (plusp (length (tracer-meaning tracer))))
    (is (search (tracer-text tracer) (princ-to-string tracer))))
  (is (= (length (tracer-table))
         (length (remove-duplicates (append (mapcar #'tracer-text (tracer-table)))
                                    :test #'string=)))))
