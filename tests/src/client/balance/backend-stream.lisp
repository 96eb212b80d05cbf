;;;; Maintained internal calls, on a subchannel whose links have no streams, and over sockets.

(in-package #:clgrpc.tests.balance)

(defun call-with-backend-stream (core function)
  "Call FUNCTION with two arguments: a backend stream on the subchannel of server 1, which is ready
and has no stream for it; and a function that returns the events since its last call."
  (let* ((told '())
         (one (member-to core 1))
         (backend-stream (balance::start-backend-stream
                          one (clgrpc.method:stub-method 'grpc.health.v1.health:watch)
                          (health:make-health-check-request)
                          (lambda (event datum) (push (if datum (list event datum) event) told)))))
    (funcall function backend-stream (lambda () (reverse (shiftf told '()))))
    (balance::end-backend-stream backend-stream)
    (is (null (client:subchannel-watchers one)))))

(defmacro with-backend-stream ((core backend-stream told) &body body)
  `(tests:with-core (,core puppet :pick-first :options (:backoff-jitter 0))
     (update ,core "[{\"round_robin\":{}}]" 1)
     (call-with-backend-stream ,core (lambda (,backend-stream ,told)
                                       (declare (ignorable ,backend-stream))
                                       (flet ((,told () (funcall ,told))) ,@body)))))

(defparameter *vain* '(:begun (:lost :resource-exhausted)))

(test backend-streams-that-fail-wait-longer-each-time
  "gRFC A17: exponential back-off, 1 s, 1.6 s, 2.56 s."
  (with-backend-stream (core backend-stream told)
    (is (null (told)) "its server is not connected")
    (bring core :ready 1)
    (is (equal *vain* (told)))
    (dolist (seconds '(1 1.6 2.56))
      (let ((waited (loop for waited from 0 by 1/4
                          for told = (told)
                          until (or told (> waited 10))
                          do (elapse core 1/4)
                          finally (is (equal *vain* told))
                                  (return waited))))
        ;; a timer may ring a quarter of a second late
        (is (<= seconds waited (+ seconds 1/2)) "it waited ~F seconds" waited)))))

(test backend-streams-that-have-heard-something-begin-again-at-once
  (with-backend-stream (core backend-stream told)
    (bring core :ready 1)
    (told)
    (client::stop-back-off (balance::backend-stream-back-off backend-stream)
                           (client:core-loop core))
    (setf (balance::backend-stream-heard backend-stream) t)
    (balance::backend-stream-ended backend-stream :unavailable)
    (is (equal (list* '(:lost :unavailable) *vain*) (told))
        "the next attempt is made at once and is in vain, so a wait begins")
    (elapse core 0.5)
    (is (null (told)))))

(test backend-streams-that-are-ended-after-a-message-again-and-again-wait
  "gRFC A17: the next attempt at once, any subsequent one after a back-off, until one has lasted."
  (with-backend-stream (core backend-stream told)
    (bring core :ready 1)
    (told)
    (let ((begun 0))
      (flet ((end-after (seconds)
               "The call under way ends that has brought a message, SECONDS after it began."
               (client::stop-back-off (balance::backend-stream-back-off backend-stream)
                                      (client:core-loop core))
               (setf (balance::backend-stream-heard backend-stream) t
                     (balance::backend-stream-began-ns backend-stream)
                     (- (client::core-now core) (seconds-ns seconds)))
               (balance::backend-stream-ended backend-stream :unavailable)
               (setf begun (count :begun (told)))))
        (end-after 0.01)
        (is (= 1 begun) "the first call begins at once")
        (dotimes (i 20)
          (end-after 0.01)
          (is (= 0 begun) "the next call begins later"))
        (end-after 1)
        (is (= 1 begun) "a call has lasted")
        (end-after 0.01)
        (is (= 0 begun))))))

(test backend-streams-that-nobody-implements-end
  "They begin again when there is another connection."
  (with-backend-stream (core backend-stream told)
    (bring core :ready 1)
    (told)
    (client::stop-back-off (balance::backend-stream-back-off backend-stream)
                           (client:core-loop core))
    (balance::backend-stream-ended backend-stream :unimplemented)
    (is (equal '(:unimplemented) (told)))
    (elapse core 300)
    (is (null (told)))
    (bring core :idle 1)
    (bring core :ready 1)
    (is (equal *vain* (told)))))

(test backend-streams-are-suspended-without-a-connection
  (with-backend-stream (core backend-stream told)
    (bring core :ready 1)
    (told)
    (elapse core 1/2)
    (bring core :idle 1)
    (bring core :ready 1)
    (is (equal *vain* (told)))
    (elapse core 1)
    (is (null (told)) "the wait that began before the connection was lost is over")
    (bring core :idle 1)
    (elapse core 10)
    (is (null (told)) "nothing is tried without a connection")
    (balance::end-backend-stream backend-stream)
    (bring core :ready 1)
    (elapse core 10)
    (is (null (told)) "nothing is tried after the stream was ended")))

;;; Over sockets: a service whose first calls of Watch end as a test says

(defclass moody-health (grpc:health-service)
  ((moods :initarg :moods :accessor moods
          :documentation "A health service. For each of the first calls of Watch it has the status
with which the call ends, and whether the call reports :serving before.")
   (watches :initform '() :accessor watches
            :documentation "When the calls were, in nanoseconds, newest first."))
  (:documentation "Health that is badly served."))

(defmethod grpc.health.v1.health:watch ((service moody-health) request &key call)
  (declare (ignore request))
  (push (monotonic-ns) (watches service))
  (let ((mood (pop (moods service))))
    (cond (mood
           (destructuring-bind (status &key well) mood
             (when well
               (grpc:send call (health:make-health-check-response :status :serving)))
             (grpc:fail status "in a mood")))
          (t (call-next-method)))))

(defun call-with-moody-server (moods function)
  "Call FUNCTION with a channel by round_robin, whose only server's health has MOODS, and that."
  (let* ((service (make-instance 'moody-health :moods moods))
         (server (grpc:start-server
                  (list (make-probe :ask (handling (note)
                                           (note (number-of note))))
                        service)
                  :listen "127.0.0.1:0")))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server)
                                     :backoff-initial-seconds 0.2 :backoff-jitter 0
                                     :service-config
                                     "{\"loadBalancingConfig\":[{\"round_robin\":{}}],
                                       \"healthCheckConfig\":{\"serviceName\":\"\"}}")
           (funcall function channel service))
      (is-true (grpc:stop-server server :drain 5)))))

(defun gaps (service)
  "The seconds between the calls of Watch that SERVICE has received."
  (let ((times (reverse (watches service))))
    (mapcar (lambda (one next) (/ (- next one) 1d9)) times (rest times))))

(test watches-that-fail-are-tried-again-with-back-off
  (call-with-moody-server
   '((:unavailable) (:internal))
   (lambda (channel service)
     (is (= 7 (number-of (ask channel (note 7) :timeout 20 :wait-for-ready t))))
     (is (= 3 (length (watches service))))
     (destructuring-bind (first second) (gaps service)
       (is (<= 0.19 first))
       (is (<= 0.31 second))))))

(test watches-that-have-said-something-are-tried-again-at-once
  (call-with-moody-server
   '((:unavailable :well t))
   (lambda (channel service)
     (is (= 7 (number-of (ask channel (note 7) :timeout 20 :wait-for-ready t))))
     (eventually (= 2 (length (watches service))))
     (is (= 7 (number-of (ask channel (note 7) :timeout 20 :wait-for-ready t))))
     (is (> 0.15 (first (gaps service)))))))

(test watches-that-are-not-implemented-are-not-tried-again
  (with-log (:no-health-service)
    (call-with-moody-server
     '((:unimplemented))
     (lambda (channel service)
       (loop repeat 3
             do (is (= 7 (number-of (ask channel (note 7) :timeout 20 :wait-for-ready t)))))
       (is (= 1 (settled (lambda () (length (watches service))))))
       (is (eq :ready (grpc:channel-state channel)))))))
