;;;; Client-side health checking (gRFC A17): while a server is connected it is asked, by Watch of
;;;; its health service, whether it serves. Until it has said so, the subchannel counts as
;;;; :connecting; while it says no, or the call has failed, as failed. A server that has no health
;;;; service serves. It is done for policies that choose among servers; not for pick_first.

(in-package #:clgrpc.balance)

(defun judge-health (subchannel service event datum)
  "What has happened to the call of Watch for SERVICE on SUBCHANNEL, as START-BACKEND-STREAM tells
it."
  (ecase event
    (:begun (impose-veto subchannel :health :connecting "its health is not known yet"))
    (:message
     (let ((status (health:health-check-response-status datum)))
       (if (eq :serving status)
           (lift-veto subchannel :health)
           (impose-veto subchannel :health :transient-failure
                        (format nil "~A says of its health~@[, of ~A~]: ~A"
                                (subchannel-key subchannel)
                                (and (plusp (length service)) service)
                                (substitute #\_ #\- (princ-to-string status)))))))
    (:lost (impose-veto subchannel :health :transient-failure
                        (format nil "~A was asked for its health, which failed with ~A"
                                (subchannel-key subchannel) datum)))
    (:unimplemented
     (log-event :error :no-health-service :server (subchannel-key subchannel))
     (lift-veto subchannel :health))))

(defun check-health (subchannel service)
  "Have the server of SUBCHANNEL asked for the health of SERVICE while it is connected, and no calls
sent there while it is not well. Return the backend stream."
  (start-backend-stream subchannel (method:find-rpc-method 'grpc.health.v1.health:watch)
                        (health:make-health-check-request :service service)
                        (lambda (event datum) (judge-health subchannel service event datum))))

(defun stop-health-check (subchannel backend-stream)
  "End BACKEND-STREAM, which CHECK-HEALTH of SUBCHANNEL has returned."
  (end-backend-stream backend-stream)
  (lift-veto subchannel :health))
