;;;; The states of subchannels, as their balancers see them: the state of a subchannel's links,
;;;; changed by vetoes. A veto makes a subchannel whose links are ready count as not ready: the
;;;; health service of its server reports that it does not serve, or outlier detection has ejected
;;;; it. Each channel has its own vetoes, even on connections that it shares with others.

(in-package #:clgrpc.client)

(defun state-under-vetoes (subchannel)
  "The state of SUBCHANNEL as its balancer sees it: the state of its links or, while these are ready
and SUBCHANNEL has a veto, the state of the newest veto."
  (let ((state (subchannel-link-state subchannel))
        (veto (first (subchannel-vetoes subchannel))))
    (if (and veto (eq :ready state)) (veto-state veto) state)))

(defun come-to-state (subchannel state)
  "Change the state of SUBCHANNEL to STATE, and notify its balancer."
  (trace-event :subchannel :subchannel-changed
               :target (core-name (subchannel-core subchannel))
               :addresses (server-text subchannel)
               :from (subchannel-state subchannel) :to state)
  (let ((failed (eq :transient-failure state)))
    (note-subchannel-event subchannel (if failed :warning :info)
                           "state changed from ~A to ~A~@[: ~A~]"
                           (state-text (subchannel-state subchannel)) (state-text state)
                           (and failed (last-error-text subchannel))))
  (setf (subchannel-state subchannel) state)
  (let ((balancer (subchannel-balancer subchannel)))
    (call-guarded balancer balancer (lambda () (subchannel-changed balancer subchannel)))))

(defun review-state (subchannel)
  "Notify the balancer of SUBCHANNEL if its state has changed."
  (let ((state (state-under-vetoes subchannel)))
    (unless (eq state (subchannel-state subchannel)) (come-to-state subchannel state))))

(defun impose-veto (subchannel name state text)
  "Veto SUBCHANNEL: while its links are ready its state is STATE, because of TEXT, until LIFT-VETO
of the same NAME, or a newer veto. The new veto replaces an earlier veto of NAME."
  (setf (subchannel-vetoes subchannel)
        (cons (make-veto name state text)
              (remove name (subchannel-vetoes subchannel) :key #'veto-name)))
  (review-state subchannel))

(defun lift-veto (subchannel name)
  "Remove the veto of NAME on SUBCHANNEL, if it exists."
  (setf (subchannel-vetoes subchannel)
        (remove name (subchannel-vetoes subchannel) :key #'veto-name))
  (review-state subchannel))

(defun last-error-text (subchannel)
  "The reason, a text, why SUBCHANNEL, which is in :transient-failure, is not ready."
  (let ((veto (first (subchannel-vetoes subchannel))))
    (cond ((and veto (eq :ready (subchannel-link-state subchannel))) (veto-text veto))
          ((connection-set-failure (subchannel-connection-set subchannel)))
          (t "no connection"))))

(defun add-listener (subchannel function)
  "Call FUNCTION at the end of each attempt of a call on SUBCHANNEL, after the functions added
before. FUNCTION's arguments are the call, SUBCHANNEL, the attempt's status, and its trailers,
fields or nil."
  (declare (type function function))
  (let ((before (subchannel-listener subchannel)))
    (setf (subchannel-listener subchannel)
          (lambda (call subchannel status trailers)
            (when before (funcall (the function before) call subchannel status trailers))
            (loop:guarding (:balancer-failed :balancer (subchannel-balancer subchannel))
              (funcall function call subchannel status trailers))))))
