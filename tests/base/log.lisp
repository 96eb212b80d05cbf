;;;; The log never signals and never calls itself.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(test log-is-silent-by-default
  (is (string= "" (with-output-to-string (*standard-output*)
                    (let ((*error-output* *standard-output*))
                      (log-event :error :nothing))))))

(test log-passes-events-on
  (let* ((events '())
         (*log-function* (lambda (&rest event) (push event events))))
    (log-event :info :started :port 80)
    (is (equal '((:info :started :port 80)) events))))

(test log-swallows-errors
  (let* ((calls 0)
         (*log-function* (lambda (&rest event)
                           (declare (ignore event))
                           (incf calls)
                           (log-event :error :again)
                           (error "broken"))))
    (finishes (log-event :info :started))
    (is (= 1 calls))))

(test log-conditions-with-backtrace
  (let* ((event nil)
         (*log-function* (lambda (&rest rest) (setf event rest))))
    (block nil
      (handler-bind ((error (lambda (condition)
                              (log-condition :error :failed condition :where 1)
                              (return))))
        (error "broken")))
    (destructuring-bind (level name &key condition backtrace where) event
      (is (equal '(:error :failed 1) (list level name where)))
      (is (string= "broken" (princ-to-string condition)))
      (is (search "LOG-CONDITIONS-WITH-BACKTRACE" backtrace)))))
