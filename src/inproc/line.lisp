;;;; The ends of a call, and the line between them, which is made up when it is first needed: a
;;;; unary call whose handler answers on its caller's thread has none.

(in-package #:clgrpc.inproc)

(define-hot (make-client-end :inline t) ((method rpc-method) (deadline status:deadline) status
                                         (site site) line)
    inproc-call
  (%make-inproc-call method (site-client-operations site) deadline nil status nil site line))

(define-hot (make-server-end :inline t) ((method rpc-method) (deadline status:deadline) fields
                                         (site site) line)
    inproc-call
  (%make-inproc-call method (site-server-operations site) deadline fields nil
                     (and (member (rpc-method-kind method) '(:unary :server-streaming)) t)
                     site line))

(defun inproc-observer (call)
  "The operation OBSERVER."
  (if (rpc:client-p call)
      (site-observer (call-site call))
      (let ((line (inproc-call-line call)))
        (and line (line-host line) (host-observer (line-host line))))))

(defun inproc-particulars (call)
  "The operation PARTICULARS."
  (list (if (rpc:client-p call) :target :peer) (rpc:call-peer call)))

(define-hot (site-now :inline t) ((site site)) nanoseconds
  "The time now, by SITE's clock."
  (the (values nanoseconds &optional) (funcall (site-clock site))))

(define-hot (passage-of :inline t) ((call inproc-call)) (or null passage)
  "The PASSAGE of CALL, or nil if it has no observer."
  (declare (inline rpc:call-value))
  (values (the (or null passage) (values (rpc:call-value call 'passage)))))

(defun begin-passage (line)
  "Have what passes on LINE, whose call has begun, be counted from now on."
  (let ((passage (make-passage :began-ns (site-now (call-site (line-client line))))))
    (setf (rpc:call-value (line-client line) 'passage) passage
          (rpc:call-value (line-server line) 'passage) passage)))

(defun tell-begin (line)
  "Tell the observers of both ends that the call of LINE has begun. Within the image it has one
attempt, which begins with it."
  (let* ((client (line-client line))
         (server (line-server line))
         (observer (site-observer (call-site client))))
    (when (or observer (inproc-observer server)) (begin-passage line))
    (rpc:observe call-made observer client)
    (rpc:observe call-begun observer client)
    (when (and observer
               (null (call-status client))
               (not (and (line-host line) (host-relays (line-host line)))))
      (setf (passage-attempt (passage-of client)) t)
      (rpc:observe attempt-begun observer client (site-target (call-site client)) 0))
    (when (line-host line) (rpc:observe call-begun (inproc-observer server) server))))

(defun tell-half-closed (line)
  "Tell the observers of both ends that LINE's client sends no more."
  (let ((client (line-client line)) (server (line-server line)))
    (rpc:observe half-closed (inproc-observer client) client)
    (rpc:observe half-closed (inproc-observer server) server)))

(defun tell-attempt-ended (client)
  "CLIENT, a client's end, has ended, and its attempt with it."
  (let ((passage (passage-of client)))
    (when (and passage (shiftf (passage-attempt passage) nil))
      (rpc:observe attempt-ended (inproc-observer client) client
                   (site-target (call-site client)) (call-status client) 0
                   (passage-requests passage) (passage-responses passage)
                   (elapsed-ns client)))))

(defun traffic (call)
  "The operation TRAFFIC."
  (let ((passage (passage-of call)))
    (cond ((null passage) (values 0 0 0))
          ((rpc:client-p call)
           (values (passage-requests passage) (passage-responses passage)
                   (passage-began-ns passage)))
          (t (values (passage-responses passage) (passage-requests passage)
                     (passage-began-ns passage))))))

(defun elapsed-ns (call)
  "The operation ELAPSED-NS."
  (let ((passage (passage-of call)))
    (if passage
        (max 0 (- (site-now (call-site call)) (passage-began-ns passage)))
        0)))

(define-hot open-line ((site site) (host host) (route inproc-route) (method rpc-method)
                       (deadline status:deadline) fields values)
    line
  "A line with both ends; the client's has VALUES, as :values of a stub. The handler has not begun."
  (let ((line (make-line host route nil)))
    (setf (line-client line) (make-client-end method deadline nil site line)
          (line-server line) (make-server-end method deadline fields site line))
    (when values (calling:begin-values (line-client line) values))
    (sb-sys:without-interrupts          ; what is counted can be left
      (count-begun (host-tally host))
      (rpc:note-opened (line-client line)))
    (when (observed-p site host) (tell-begin line))
    line))

(defmacro with-line ((line form) &body body)
  "Evaluate BODY with LINE bound to what FORM returns, a new line. If BODY is left by a non-local
exit, the client has left its call."
  (let ((done (gensym "DONE")))
    `(let ((,line nil) (,done nil))
       (with-undoing ((setf ,line ,form)
                      (unless ,done (operate leave (line-client ,line))))
         (multiple-value-prog1 (let ((,line (the line ,line))) ,@body)
           (setf ,done t))))))

(defun make-up-line (call)
  "Give CALL, which had no line so far, another end and a line. CALL is the end of a handler that
runs on its client's thread, or of a client whose call had ended before it got a line."
  (let* ((site (call-site call))
         (host (site-host site))
         (method (call-rpc-method call))
         (client-p (rpc:client-p call))
         (line (make-line host (and host (route-to host method)) nil)))
    (setf (line-client line) (if client-p
                                 call
                                 (make-client-end method (call-deadline call) nil site line))
          (line-server line) (if client-p
                                 (make-server-end method (call-deadline call) nil site line)
                                 call)
          (line-held line) :closed
          (line-phase line) (if client-p :over sb-thread:*current-thread*)
          (line-claim line) (and (call-status call) t))
    (when client-p (setf (call-status (line-server line)) (call-status call)))
    (or (compare-and-swap (inproc-call-line call) nil line) line)))

(define-hot (call-line :inline t) ((call inproc-call)) line
  "The line of CALL, made now if there is none."
  (or (inproc-call-line call) (make-up-line call)))

(define-hot (other-end :inline t) ((call inproc-call)) inproc-call
  "The other end of CALL."
  (let ((line (call-line call)))
    (the inproc-call (if (rpc:client-p call) (line-server line) (line-client line)))))

(define-hot (mail :inline t) ((call inproc-call)) (or null mailbox)
  "The mailbox of CALL, or nil as long as only one thread uses its line."
  (let ((line (inproc-call-line call)))
    (and line (if (rpc:client-p call) (line-client-mail line) (line-server-mail line)))))

(define-hot (mail-for :inline t) ((call inproc-call)) t
  "The message in the mailbox of CALL, or nil."
  (let ((mail (mail call)))
    (and mail (svref mail +mail+))))

(define-hot open-mail ((line line)) null
  "Make the mailboxes of LINE: two threads may use its ends from now on. From any thread."
  (flet ((mailbox () (make-array 24 :initial-element nil)))
    (unless (line-client-mail line)
      (compare-and-swap (line-client-mail line) nil (mailbox)))
    (unless (line-server-mail line)
      (compare-and-swap (line-server-mail line) nil (mailbox))))
  nil)

;;; What is known of a call

(define-hot call-now ((call inproc-call)) nanoseconds
  "The operation NOW."
  (site-now (call-site call)))

(defun site-peer (call)
  "The operation PEER."
  (site-target (call-site call)))

(defun line-stage (call)
  "The operation STAGE."
  (let ((line (inproc-call-line call)))
    (if (and line (eq :waiting (line-phase line))) :queue :answer)))

(defun line-stages (call)
  "The operation STAGES."
  (let ((outcome (rpc:call-outcome call)))
    (cond (outcome (list :stage (rpc:outcome-stage outcome)))
          ((call-status call) '())
          (t (list :stage (rpc:call-stage call))))))
