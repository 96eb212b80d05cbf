;;;; A vigil: a side call that is kept up on a subchannel for as long as its links are ready. When
;;;; the call ends it is made again (gRFC A17):
;;;;
;;;;   at once              if it has brought a message, but only once until a call has lasted
;;;;   after a back-off     else, as for connections: longer each time, until a call has lasted
;;;;   not at all           if the server does not implement the method, until there is another
;;;;                        connection
;;;;
;;;; A call has lasted if it has brought a message and ran for as long as the first wait of a
;;;; back-off. So a server that ends
;;;; every call after one message is asked about as often as one that does not answer.

(in-package #:clgrpc.balance)

(defstruct (vigil (:copier nil))
  "A side call of METHOD on SUBCHANNEL that is kept up."
  (subchannel nil :type subchannel :read-only t) ; that it is on
  (method nil :read-only t)             ; an RPC-METHOD that streams responses
  (request nil :read-only t)            ; its request, a message
  ;; called with what happens and a message or a text, see KEEP-VIGIL
  (tell nil :type function :read-only t)
  (watcher nil :type (or null function)) ; among those of the subchannel
  (call nil)                            ; that is under way, or nil
  (heard nil :type boolean)             ; it has brought a message
  (began-ns 0 :type nanoseconds)        ; when it began
  (hasty nil :type boolean)             ; one was made at once, and none has lasted since
  (vain nil :type boolean)              ; the server does not implement it
  (back-off (make-back-off) :type back-off :read-only t)) ; between calls

(defmethod print-object ((vigil vigil) stream)
  (print-unreadable-object (vigil stream :type t)
    (princ (vigil-subchannel vigil) stream)))

(defun vigil-core (vigil)
  (client:subchannel-core (vigil-subchannel vigil)))

(defun vigil-now (vigil)
  (loop:event-loop-now (client:core-loop (vigil-core vigil))))

(defun lasted-p (vigil)
  "True if the call of VIGIL, which has ended, has lasted."
  (and (vigil-heard vigil)
       (>= (- (vigil-now vigil) (vigil-began-ns vigil))
           (seconds-ns (options-backoff-initial-seconds
                        (client:core-options (vigil-core vigil)))))))

(defun renew-at-once (vigil)
  (setf (vigil-hasty vigil) t)
  (resume-vigil vigil))

(defun renew-later (vigil)
  (let ((loop (client:core-loop (vigil-core vigil))))
    (start-back-off (vigil-back-off vigil) loop (client:core-options (vigil-core vigil))
                    (lambda () (resume-vigil vigil))
                    :since-ns (loop:event-loop-now loop))))

(defun linked-p (vigil)
  (eq :ready (subchannel-link-state (vigil-subchannel vigil))))

(defun tell-of-vigil (vigil event &optional datum)
  (loop:guarding (:balancer-failed :balancer (client:subchannel-balancer (vigil-subchannel vigil)))
    (funcall (vigil-tell vigil) event datum)))

(defun resume-vigil (vigil)
  "Make the call of VIGIL, if there is none."
  (when (and (linked-p vigil) (vigil-watcher vigil) (null (vigil-call vigil)))
    (setf (vigil-heard vigil) nil
          (vigil-began-ns vigil) (vigil-now vigil))
    (tell-of-vigil vigil :begun)
    (let ((call nil))
      (setf call (open-side-call (vigil-subchannel vigil) (vigil-method vigil)
                                 (vigil-request vigil)
                                 :on-message (lambda (message)
                                               (when (eq call (vigil-call vigil))
                                                 (setf (vigil-heard vigil) t)
                                                 (tell-of-vigil vigil :message message)))
                                 :on-end (lambda (status)
                                           (when (eq call (vigil-call vigil))
                                             (setf (vigil-call vigil) nil)
                                             (vigil-ended vigil status)))))
      (setf (vigil-call vigil) call)
      (unless call (vigil-ended vigil :resource-exhausted)))))

(defun vigil-ended (vigil status)
  "The call of VIGIL has ended with STATUS."
  (cond ((not (linked-p vigil)))
        ((eq :unimplemented status)
         (setf (vigil-vain vigil) t)
         (tell-of-vigil vigil :unimplemented))
        (t (tell-of-vigil vigil :lost status)
           (when (lasted-p vigil)
             (forget-failures (vigil-back-off vigil))
             (setf (vigil-hasty vigil) nil))
           (if (and (vigil-heard vigil) (not (vigil-hasty vigil)))
               (renew-at-once vigil)
               (renew-later vigil)))))

(defun suspend-vigil (vigil)
  "End the call of VIGIL: its links are not ready any more, or nobody wants to know."
  (setf (vigil-hasty vigil) nil)
  (stop-back-off (vigil-back-off vigil) (client:core-loop (vigil-core vigil)))
  (let ((call (shiftf (vigil-call vigil) nil)))
    (when call (close-side-call call))))

(defun keep-vigil (subchannel method request tell)
  "Keep up a call of METHOD with REQUEST on SUBCHANNEL. TELL is called with :begun when a call
begins, :message and the message, :lost and the status when a call has ended, :unimplemented.
Return the vigil."
  (let ((vigil (make-vigil :subchannel subchannel :method method :request request :tell tell)))
    (flet ((watch (subchannel)
             (declare (ignore subchannel))
             (cond ((not (linked-p vigil))
                    (setf (vigil-vain vigil) nil)
                    (suspend-vigil vigil))
                   ((not (vigil-vain vigil)) (resume-vigil vigil)))))
      (setf (vigil-watcher vigil) #'watch)
      (push #'watch (subchannel-watchers subchannel))
      (watch subchannel))
    vigil))

(defun end-vigil (vigil)
  "Nobody wants to know any more."
  (let ((subchannel (vigil-subchannel vigil)))
    (setf (subchannel-watchers subchannel)
          (remove (shiftf (vigil-watcher vigil) nil) (subchannel-watchers subchannel)))
    (suspend-vigil vigil)))
