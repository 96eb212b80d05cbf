;;;; What is asked of a call on the client by those who wait for it or look at it: how they wait,
;;;; what it waits for, and its reply if it is its own future.

(in-package #:clgrpc.client)

(defun client-trouble (call)
  "The operation TROUBLE."
  (let ((core (client-call-core call)))
    (case (rpc:call-stage call)
      ((:resolve :connect :handshake :back-off) (core-trouble core))
      (:queue (full-text core)))))

(defun full-text (core)
  "That all streams are open that CORE's servers allow, or nil if none is connected."
  (let* ((links (loop for subchannel in (core-subchannels core)
                      append (trunk-links (trunk-of subchannel))))
         (limit (loop for link in links
                      sum (http2:connection-peer-max-streams (wire:link-http2 link)))))
    (and links
         (format nil "all ~D that ~A ~[allows~:;and ~:*~D more allow~] are open" limit
                 (wire:link-peer (first links)) (1- (length links))))))

(defun client-drive (call ready-p)
  "The operation DRIVE."
  (drive-for (wire-call-loop call) call ready-p))

(defun client-park (call ready-p)
  "The operation PARK."
  (declare (type function ready-p))
  (let ((loop (wire-call-loop call)))
    (flet ((await (candidate)
             (loop:call-served loop
                               (lambda ()
                                 (rpc:park call ready-p
                                           (if candidate
                                               (lambda () (loop:left-to-drive-p loop))
                                               (constantly nil))))
                               candidate)))
      (if (or service:*call* (not (loop:may-drive-p loop)))
          (await nil)
          (loop for answer = (await (rpc:gate-ringer call))
                until (or answer (call-status call) (client-drive call ready-p))
                finally (return (funcall ready-p call)))))))

(defun client-particulars (call)
  "The operation PARTICULARS."
  (let ((core (client-call-core call)))
    (list :target (core-name core)
          :authority (hpack:field-value-string (core-authority core)))))

;;; Futures: the call is its own, see future.lisp

(defstruct (undecoded (:constructor make-undecoded (reply)) (:copier nil))
  "A long REPLY that several threads may ask for at once: who has LOCK decodes it."
  (reply nil)                           ; as it came
  (lock (sb-thread:make-mutex :name "clgrpc reply") :read-only t)) ; of whoever decodes it

(defmethod print-object ((undecoded undecoded) stream)
  (print-unreadable-object (undecoded stream :type t)))

(defun decode-reply (call)
  "Decode the reply of CALL, a long one, unless another thread has: in its place comes the message,
or the RPC-ERROR that says what is wrong with it, which is returned."
  (let ((item (client-call-reply call)))
    (when (wire:undecoded-p item)
      (let ((new (make-undecoded item)))
        (setf item (compare-and-swap (client-call-reply call) item new))
        (when (wire:undecoded-p item) (setf item new))))
    (when (typep item 'undecoded)
      (sb-thread:with-mutex ((undecoded-lock item))
        (when (eq item (client-call-reply call))
          (setf (client-call-reply call)
                (handler-case (wire:wire-decode call (undecoded-reply item) 0 0)
                  (status:rpc-error (error) error))))))
    (client-call-reply call)))

(defun reply-of-future (call)
  "The operation REPLY-OF-FUTURE."
  (let ((reply (client-call-reply call)))
    (if (or (wire:undecoded-p reply) (typep reply 'undecoded))
        (decode-reply call)
        reply)))

(defun reserve-of-future (call)
  "The operation RESERVE-OF-FUTURE."
  (client-loop-reserve (core-client-loop (client-call-core call))))
