;;;; Attempts as their interceptors see them, of calls without a transport.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.attempt)

(defun seen-attempt (interceptor &key (call (new-call)) (number 0) retries)
  "The view of an attempt of CALL that INTERCEPTOR has seen, and the error with which it fails."
  (attempt:view-attempt call number retries "somewhere:1" '(("a" . "b")) (list interceptor)))

(test kinds-of-attempts
  "The first attempt, those of the policy, and the repetition of one that the server has not seen."
  (flet ((kind (number policy &rest failed)
           (let ((call (new-call)))
             (dolist (number failed)
               (rpc:note-failed-attempt call number nil :unavailable "" 0))
             (attempt:attempt-kind (seen-attempt #'list :call call :number number
                                                        :retries (retries-of policy))))))
    (is (eq :first (kind 0 nil)))
    (is (eq :first (kind 0 (hedging))))
    (is (eq :retry (kind 1 (retrying) 0)))
    (is (eq :hedge (kind 2 (hedging) 0)))
    (is (eq :transparent (kind 0 nil 0)))
    (is (eq :transparent (kind 1 (retrying) 0 1)))))

(test attempts-are-viewed-for-their-interceptors
  "Without interceptors for its method an attempt has no view, and nothing fails."
  (is (equal '(nil nil)
             (multiple-value-list (attempt:view-attempt (new-call) 0 nil "somewhere:1" '() '()))))
  (multiple-value-bind (attempt error) (seen-attempt #'list)
    (is (null error))
    (is (equal '("somewhere:1" (("a" . "b")))
               (list (attempt:attempt-peer attempt) (attempt:attempt-request-metadata attempt))))))

(test metadata-change-only-before-they-are-sent
  "A function of ON-ATTEMPT-END cannot change them either, even if the interceptor failed."
  (flet ((change (attempt)
           (setf (attempt:attempt-request-metadata attempt) '(("c" . "d")))))
    (let ((attempt (seen-attempt #'change)))
      (is (equal '(("c" . "d")) (attempt:attempt-request-metadata attempt)))
      (signals misuse (change attempt)))
    (multiple-value-bind (attempt error)
        (seen-attempt (fn (_attempt) (status:fail :aborted "why")))
      (is (typep error 'status:aborted))
      (finishes (change attempt))
      (attempt:close-attempt attempt :aborted)
      (signals misuse (change attempt)))))

(test attempts-end-with-what-their-server-sent
  "Their own text and trailers, or those of the call that ended with them; then their functions are
called in order, with the attempt's call as the current one."
  (let ((call (new-call :metadata (fn (_call fields) (coerce fields 'list))))
        (order '()))
    (setf (rpc::call-fields call) #(:head))
    (flet ((ended (&rest end)
             (let ((attempt (seen-attempt #'list :call call)))
               (dolist (number '(1 2))
                 (let ((number number))
                   (attempt:on-attempt-end
                    attempt (lambda () (push (cons number method:*call*) order)))))
               (apply #'attempt:close-attempt attempt end)
               (list (attempt:attempt-status attempt) (attempt:attempt-message attempt)
                     (attempt:attempt-metadata attempt) (attempt:attempt-trailers attempt)))))
      (is (equal '(:cancelled "" () ()) (ended :cancelled)))
      (is (equal '(:internal "own" () (:own))
                 (ended :internal :message "own" :trailer-fields #(:own))))
      (setf (rpc:trailer-fields call) #(:tail))
      (rpc:end-call call :aborted :message "why")
      (is (equal '(:aborted "why" (:head) (:tail))
                 (ended :aborted :call call :message "own" :trailer-fields #(:own))))
      (is (equal (loop repeat 3 append `((2 . ,call) (1 . ,call))) order)))))
