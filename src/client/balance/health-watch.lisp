;;;; Client-side health checking (gRFC A17): while a server is connected, a call of Watch of its
;;;; health service reports its health. Before the first report the subchannel counts as
;;;; :connecting. While the server is not :serving, or the call has failed, it counts as failed. A
;;;; server without a health service counts as serving. Policies that choose among servers use this;
;;;; pick_first does not.

(in-package #:clgrpc.balance)

(defun judge-health (subchannel service event datum)
  "Update the veto on SUBCHANNEL after EVENT with DATUM of START-BACKEND-STREAM, for the call of
Watch for SERVICE."
  (ecase event
    (:begun (impose-veto subchannel :health :connecting "its health is not known yet"))
    (:message
     (let ((status (health:health-check-response-status datum)))
       (if (eq :serving status)
           (lift-veto subchannel :health)
           (impose-veto subchannel :health :transient-failure
                        (format nil "~A reports its health~@[, of ~A~]: ~A"
                                (subchannel-key subchannel)
                                (and (plusp (length service)) service)
                                (substitute #\_ #\- (princ-to-string status)))))))
    (:lost (impose-veto subchannel :health :transient-failure
                        (format nil "the call for the health of ~A failed with ~A"
                                (subchannel-key subchannel) datum)))
    (:unimplemented
     (log-event :error :no-health-service :server (subchannel-key subchannel))
     (lift-veto subchannel :health))))

(defun check-health (subchannel service)
  "Watch the health of SERVICE at the server of SUBCHANNEL while SUBCHANNEL is connected; the server
gets no calls while SERVICE is not :serving. Return the backend stream."
  (start-backend-stream subchannel (method:stub-method 'grpc.health.v1.health:watch)
                        (health:make-health-check-request :service service)
                        (lambda (event datum) (judge-health subchannel service event datum))))

(defun stop-health-check (subchannel backend-stream)
  "End BACKEND-STREAM, which CHECK-HEALTH of SUBCHANNEL has returned."
  (end-backend-stream backend-stream)
  (lift-veto subchannel :health))
