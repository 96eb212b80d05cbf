;;;; Calls without a transport: the queue, the end, waiting.

(in-package #:clgrpc.tests.rpc)

(defstruct (test-call (:include rpc:call)))

(defun new-call (&rest operations)
  "A call on a transport with only OPERATIONS, a plist, in addition to the essential ones."
  (flet ((nothing (&rest arguments) (declare (ignore arguments)) nil))
    (make-test-call :operations (apply #'rpc::make-operations
                                       (append operations
                                               (list :peer (constantly "somewhere:1")
                                                     :now (fn (_call) (monotonic-ns))
                                                     :taken #'nothing :drive #'nothing
                                                     :post (fn (_call function)
                                                             (funcall function))))))))

(test queue-of-messages
  "Messages leave in their order, whole; they are charged while they wait."
  (let ((call (new-call)))
    (is (null (rpc:pop-incoming call)))
    (loop for i below 10 do (rpc:push-incoming call i 100))
    (is (<= 1000 (rpc:queued-octets call)))
    (loop for i below 5 do (is (= i (rpc:receive call))))
    (rpc:push-incoming call 10 100)
    (loop for i from 5 to 10 do (is (= i (rpc:receive call))))
    (is (zerop (rpc:queued-octets call)))))

(test queue-between-threads
  "Nothing is lost or doubled between a thread that pushes and one that receives, which sleeps now
and then."
  (let* ((call (new-call))
         (receiver (in-thread (loop for item = (rpc:receive call) while item collect item))))
    (loop for i from 1 to 20000
          do (rpc:push-incoming call i 1)
             (when (zerop (mod i 1000)) (sb-thread:thread-yield)))
    (rpc:end-call call :ok)
    (is (equal (loop for i from 1 to 20000 collect i)
               (sb-thread:join-thread receiver :timeout 20 :default :hangs)))))

(test end-of-a-call
  "It happens once; messages that came before a peer's end are read, after an abort they are not."
  (let ((call (new-call)))
    (rpc:push-incoming call :first 1)
    (is-true (rpc:end-call call :aborted :message "why"))
    (is (not (rpc:end-call call :ok)))
    (is (eq :first (rpc:receive call)))
    (loop repeat 2
          do (with-signalled (error status:aborted (rpc:receive call))
               (is (string= "why" (status:rpc-error-message error)))
               (is (string= "somewhere:1" (status:rpc-error-peer error)))
               (is (eq call (status:rpc-error-call error))))))
  (let ((call (new-call)))
    (rpc:push-incoming call :first 1)
    (rpc:end-call call :cancelled :ended-by :local)
    (signals status:cancelled (rpc:receive call))
    (is-true (rpc:cancelled-p call))))

(test failed-attempts-that-are-kept
  "The first 32, with their numbers; all are counted."
  (let ((call (new-call)))
    (dotimes (number 34) (rpc:note-failed-attempt call number nil :unavailable "" 0))
    (is (equal (loop for number below 32 collect number)
               (mapcar (lambda (attempt) (getf attempt :number)) (rpc:failed-attempts call))))
    (is (= 34 (rpc::ending-attempts (rpc::call-ending call))))
    (rpc:note-failed-attempt call 0 nil :unavailable "" 0)
    (is (= 34 (rpc::ending-attempts (rpc::call-ending call))))))

(test room-that-cannot-be-kept-is-given-back
  "If the thread cannot take again what it has released for the wait, or is unwound then."
  (dolist (end (list (constantly nil) (lambda () (throw 'unwound nil))))
    (let ((settled '()) (thread sb-thread:*current-thread*))
      (with-replaced (('rpc::promise-p (constantly nil)) ('rpc::await-promise (constantly t))
                      ('loop:prepare-to-wait (lambda (function &optional wait)
                                               (cond ((eq thread sb-thread:*current-thread*)
                                                      (funcall wait)
                                                      (funcall end))
                                                     (t (funcall function wait)))))
                      ('settle-octets (lambda (function octets)
                                        (if (eq thread sb-thread:*current-thread*)
                                            (push octets settled)
                                            (funcall function octets))
                                        nil)))
        (catch 'unwound
          (signals status:resource-exhausted (rpc::ensure-promise (new-call) 5 nil nil))))
      (is (equal '(5) settled)))))

(test half-closed
  "After the last message RECEIVE returns nil, however often it is called."
  (let ((call (new-call)))
    (rpc:push-incoming call :last 1)
    (setf (rpc::call-half-closed call) t)
    (is (eq :last (rpc:receive call)))
    (is (null (rpc:receive call)))
    (is (null (rpc:receive call)))))

(test waiting
  "A waiter wakes for its event and for the end; many may wait at once."
  (dolist (end '(nil t))
    (let* ((call (new-call))
           (flag nil)
           (threads (loop repeat 10
                          collect (in-thread (rpc:wait-for-call call (fn (_call) flag))))))
      (if end
          (rpc:end-call call :ok)
          (progn (setf flag :there) (rpc:notify call)))
      (dolist (thread threads)
        (is (eq (if end nil :there)
                (sb-thread:join-thread thread :timeout 20 :default :hangs)))))))

(test waiters-are-woken-once-a-turn
  "Two rings in one turn of the loop wake the waiters once, after the functions of the turn."
  (let ((loop (loop:make-event-loop :name "rings")) (rings 0) (queue (rpc::make-wait-queue)))
    (loop:launch-event-loop loop)
    (with-replaced (('rpc::ring (lambda (function queue)
                                  (incf rings)
                                  (funcall function queue))))
      (unwind-protect
           (loop for turns from 1 to 2
                 do (loop:await (loop:call-in-loop loop (lambda ()
                                                          (rpc::ring-in-turn queue)
                                                          (rpc::ring-in-turn queue))))
                    (support:eventually (= turns rings)))
        (loop:stop-event-loop loop)
        (loop:join-event-loop loop)))
    (is (= 2 rings))))
