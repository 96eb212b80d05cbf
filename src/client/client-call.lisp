;;;; Operations of a call on the client for threads that wait for it or inspect it: waiting, the
;;;; stages of its own waits, and its reply if the call is used as a future.

(in-package #:clgrpc.client)

(defun client-last-error (call)
  "The operation LAST-ERROR."
  (let ((core (client-call-core call)))
    (case (client-stage call)
      ((:resolve :connect :handshake :back-off) (unready-text core))
      (:queue (full-text core)))))

(defun full-text (core)
  "If all streams that CORE's connected servers allow are in use, a text that reports this; nil if
some are free, or if no server is connected."
  (let* ((links (loop for subchannel in (core-subchannels core)
                      append (connection-set-links (subchannel-connection-set subchannel))))
         (limit (loop for link in links
                      sum (http2:connection-peer-max-streams (client-link-http2 link))))
         (open (loop for link in links
                     sum (http2:connection-stream-count (client-link-http2 link)))))
    (and links
         (>= open limit)
         (format nil "all ~D that ~A ~[allows~:;and ~:*~D more allow~] are open" limit
                 (client-link-peer (first links)) (1- (length links))))))

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
      (if (or method:*call* (not (loop:may-drive-p loop)))
          (await nil)
          (loop for answer = (await (lambda ()
                                      (sb-thread:barrier (:memory))
                                      (rpc:notify-sleeper call)))
                until (or answer (call-status call) (client-drive call ready-p))
                finally (return (funcall ready-p call)))))))

(defun client-particulars (call)
  "The operation PARTICULARS."
  (let ((core (client-call-core call)))
    (list :target (core-name core)
          :authority (hpack:field-value-string (authority-field call)))))

;;; The stages of a call: the operations STAGE and STAGES, computed on demand from its marks
;;; (wire/stage.lisp) and from what it has waited for (wait-clock.lisp)

(defun call-waits (call)
  "The waits of CALL, a client's, before it had a stream. The two values are the totals, as in a
WAIT-CLOCK, and the number of attempts to connect; nil if CALL has not waited."
  (let* ((parts (call-client-parts call))
         (wait (and parts (client-parts-wait parts))))
    (cond ((null wait) nil)
          ((wait-clock-done wait)
           (values (wait-clock-totals wait) (wait-clock-attempts wait)))
          (t (clock-difference (core-clock (client-call-core call)) wait
                               (operate now call))))))

(defun late-from-the-start-p (call)
  "True if the deadline of CALL had passed before the call waited for anything."
  (and (rpc:overdue-p call)
       (not (wire:marked-p call :headers))
       (null (call-waits call))))

(defun awaits-credentials-p (call)
  "True if CALL's last wait is for its credentials, which have not answered or have failed."
  (let* ((parts (call-client-parts call))
         (identity (and parts (client-parts-identity parts))))
    (and identity
         (null (client-call-stream call))
         (caller-identity-awaited identity))))

(defun stuck-p (call)
  "True if CALL, which has sent its headers, has more to send than its server accepts."
  (let ((stream (client-call-stream call)))
    (and stream (plusp (http2:stream-queued-octets stream)))))

(defun client-stage (call)
  "The operation STAGE."
  (cond ((awaits-credentials-p call) :credentials)
        ((late-from-the-start-p call) :begin)
        ((not (wire:marked-p call :headers))
         (wait-clock-stage (core-clock (client-call-core call))))
        ((stuck-p call) :send)
        ((wire:marked-p call :answer) :receive)
        (t :wait)))

(defun client-spans (call total headers answer)
  "The SPANS of WIRE:LIST-STAGES."
  (let* ((waits (call-waits call))
         (retries (call-retries call))
         (named (append
                 (when (and retries (plusp (client-retries-since-ns retries)))
                   (list (cons :retry (- (client-retries-since-ns retries)
                                         (client-call-born-ns call)))))
                 (when waits
                   (loop for stage in *waiting-stages*
                         for ns across waits
                         unless (eq stage :queue) collect (cons stage ns))))))
    (append named
            (list (cons :queue (max 0 (- (or headers total) (reduce #'+ named :key #'cdr)))))
            (when headers (list (cons :wait (- (or answer total) headers))))
            (when answer (list (cons :receive (- total answer)))))))

(defun requests-open-p (call)
  "True if CALL waits for its answer, or ended without one, while its user has not ended its
requests."
  (and (call-rpc-method call)
       (member (rpc-method-kind (call-rpc-method call)) '(:client-streaming :bidi))
       (not (eq :ok (call-status call)))
       (not (wire:marked-p call :closed))
       (eq :wait (client-stage call))))

(defun client-stages (call)
  "The operation STAGES."
  (append (wire:list-stages call #'client-spans (or (nth-value 1 (call-waits call)) 0))
          (when (requests-open-p call) (list :requests-open t))))

;;; A call is its own future, see future.lisp

(defstruct (undecoded (:constructor make-undecoded (reply)) (:copier nil))
  "A long REPLY that several threads may request at once; the thread that holds LOCK decodes it."
  (reply nil)                           ; the reply as it came
  ;; held by the thread that decodes the message
  (lock (sb-thread:make-mutex :name "clgrpc reply") :read-only t))

(defmethod print-object ((undecoded undecoded) stream)
  (print-unreadable-object (undecoded stream :type t)))

(defun decode-reply (call)
  "Decode the long reply of CALL, unless another thread has decoded it. Store the message in the
reply's place, or the RPC-ERROR if the reply is invalid, and return it."
  (let ((item (client-call-reply call)))
    (when (encoded-p item)
      (let ((new (make-undecoded item)))
        (setf item (compare-and-swap (client-call-reply call) item new))
        (when (encoded-p item) (setf item new))))
    (when (typep item 'undecoded)
      (sb-thread:with-mutex ((undecoded-lock item))
        (when (eq item (client-call-reply call))
          (setf (client-call-reply call)
                (handler-case (operate decode call (undecoded-reply item) 0 0)
                  (status:rpc-error (error) error))))))
    (client-call-reply call)))

(defun reply-of-future (call)
  "The operation REPLY-OF-FUTURE."
  (let ((reply (client-call-reply call)))
    (if (or (encoded-p reply) (typep reply 'undecoded))
        (decode-reply call)
        reply)))

(defun reserve-of-future (call)
  "The operation RESERVE-OF-FUTURE."
  (client-reserve (wire-call-loop call)))
