;;;; A backend stream: an internal call that is maintained on a subchannel while its links are
;;;; ready. When the call ends it is made again (gRFC A17):
;;;;
;;;;   at once              if it has brought a message, but only once until a call has lasted
;;;;   after a back-off     else, as for connections: longer each time, until a call has lasted
;;;;   not at all           if the server does not implement the method, until there is another
;;;;                        connection
;;;;
;;;; A call has lasted if it has received a message and ran for as long as the first wait of a
;;;; back-off. So a server that ends every call after one message gets about as many calls as a
;;;; server that does not answer.

(in-package #:clgrpc.balance)

(defstruct (backend-stream (:copier nil))
  "An internal call of METHOD on SUBCHANNEL that is made again when it ends."
  (subchannel nil :type subchannel :read-only t) ; the subchannel that the stream is on
  (method nil :read-only t)             ; an RPC-METHOD that streams responses
  (request nil :read-only t)            ; the stream's request, a message
  ;; a function of an event and of a message or a text, see START-BACKEND-STREAM
  (tell nil :type function :read-only t)
  ;; the backend stream's function among the watchers of the subchannel
  (watcher nil :type (or null function))
  (call nil)                            ; the call under way, or nil
  (heard nil :type boolean)             ; true once the stream has brought a message
  (began-ns 0 :type nanoseconds)        ; when the stream began
  ;; a call was made again at once, and no call has lasted since
  (hasty nil :type boolean)
  (vain nil :type boolean)              ; the server does not implement the method
  (back-off (make-back-off) :type back-off :read-only t)) ; the back-off between calls

(defmethod print-object ((backend-stream backend-stream) stream)
  (print-unreadable-object (backend-stream stream :type t)
    (princ (backend-stream-subchannel backend-stream) stream)))

(defun backend-stream-core (backend-stream)
  (client:subchannel-core (backend-stream-subchannel backend-stream)))

(defun backend-stream-now (backend-stream)
  (balancer-now (client:subchannel-balancer (backend-stream-subchannel backend-stream))))

(defun lasted-p (backend-stream)
  "True if the call of BACKEND-STREAM, which has ended, has lasted."
  (and (backend-stream-heard backend-stream)
       (>= (- (backend-stream-now backend-stream) (backend-stream-began-ns backend-stream))
           (seconds-ns (options-backoff-initial-seconds
                        (client:core-options (backend-stream-core backend-stream)))))))

(defun renew-at-once (backend-stream)
  "Open the stream of BACKEND-STREAM again, without a wait."
  (setf (backend-stream-hasty backend-stream) t)
  (resume-backend-stream backend-stream))

(defun renew-later (backend-stream)
  "Open the stream of BACKEND-STREAM again after a back-off."
  (let ((core (backend-stream-core backend-stream)))
    (start-back-off (backend-stream-back-off backend-stream) (client:core-loop core)
                    (client:core-options core)
                    (lambda () (resume-backend-stream backend-stream))
                    :since-ns (backend-stream-now backend-stream))))

(defun backend-linked-p (backend-stream)
  (eq :ready (subchannel-link-state (backend-stream-subchannel backend-stream))))

(defun tell-of-backend-stream (backend-stream event &optional datum)
  "Call the function of BACKEND-STREAM's owner with EVENT and DATUM; log errors in it."
  (loop:guarding (:balancer-failed :balancer (client:subchannel-balancer
                                              (backend-stream-subchannel backend-stream)))
    (funcall (backend-stream-tell backend-stream) event datum)))

(defun resume-backend-stream (backend-stream)
  "Make the call of BACKEND-STREAM, if it has none."
  (when (and (backend-linked-p backend-stream) (backend-stream-watcher backend-stream)
             (null (backend-stream-call backend-stream)))
    (setf (backend-stream-heard backend-stream) nil
          (backend-stream-began-ns backend-stream) (backend-stream-now backend-stream))
    (tell-of-backend-stream backend-stream :begun)
    (let ((call nil))
      (setf call (open-internal-call (backend-stream-subchannel backend-stream)
                                     (backend-stream-method backend-stream)
                                     (backend-stream-request backend-stream)
                                     :on-message (lambda (message)
                                                   (when (eq call
                                                             (backend-stream-call backend-stream))
                                                     (setf (backend-stream-heard backend-stream) t)
                                                     (tell-of-backend-stream backend-stream
                                                                             :message message)))
                                     :on-end (lambda (status)
                                               (when (eq call (backend-stream-call backend-stream))
                                                 (setf (backend-stream-call backend-stream) nil)
                                                 (backend-stream-ended backend-stream status)))))
      (setf (backend-stream-call backend-stream) call)
      (unless call (backend-stream-ended backend-stream :resource-exhausted)))))

(defun backend-stream-ended (backend-stream status)
  "Handle the end of BACKEND-STREAM's call, with STATUS."
  (cond ((not (backend-linked-p backend-stream)))
        ((eq :unimplemented status)
         (setf (backend-stream-vain backend-stream) t)
         (tell-of-backend-stream backend-stream :unimplemented))
        (t (tell-of-backend-stream backend-stream :lost status)
           (when (lasted-p backend-stream)
             (forget-failures (backend-stream-back-off backend-stream))
             (setf (backend-stream-hasty backend-stream) nil))
           (if (and (backend-stream-heard backend-stream)
                    (not (backend-stream-hasty backend-stream)))
               (renew-at-once backend-stream)
               (renew-later backend-stream)))))

(defun suspend-backend-stream (backend-stream)
  "End the call of BACKEND-STREAM, because its links are no longer ready or the stream ends."
  (setf (backend-stream-hasty backend-stream) nil)
  (stop-back-off (backend-stream-back-off backend-stream)
                 (client:core-loop (backend-stream-core backend-stream)))
  (let ((call (shiftf (backend-stream-call backend-stream) nil)))
    (when call (close-internal-call call))))

(defun start-backend-stream (subchannel method request tell)
  "Maintain a call of METHOD with REQUEST on SUBCHANNEL, and return the backend stream. TELL is
called with an event and a datum: with :begun when a call begins; with :message and the message;
with :lost and the status when a call has ended; with :unimplemented if the server lacks the
method."
  (let ((backend-stream (make-backend-stream :subchannel subchannel :method method :request request
                                             :tell tell)))
    (flet ((watch (subchannel)
             (declare (ignore subchannel))
             (cond ((not (backend-linked-p backend-stream))
                    (setf (backend-stream-vain backend-stream) nil)
                    (suspend-backend-stream backend-stream))
                   ((not (backend-stream-vain backend-stream))
                    (resume-backend-stream backend-stream)))))
      (setf (backend-stream-watcher backend-stream) #'watch)
      (push #'watch (subchannel-watchers subchannel))
      (watch subchannel))
    backend-stream))

(defun end-backend-stream (backend-stream)
  (let ((subchannel (backend-stream-subchannel backend-stream)))
    (setf (subchannel-watchers subchannel)
          (remove (shiftf (backend-stream-watcher backend-stream) nil)
                  (subchannel-watchers subchannel)))
    (suspend-backend-stream backend-stream)))
