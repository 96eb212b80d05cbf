;;;; A call on a link, as far as both ends are alike: taking messages out of DATA, encoding messages
;;;; straight into the loop's output, back-pressure both ways, posting from other threads.
;;;;
;;;; On the loop a message that fits one frame and both windows is serialised where it is sent from.
;;;; Any other thread encodes privately, charges the octets to the call's send budget and posts.
;;;; Window is given back as octets arrive, so that a message larger than the window gets through,
;;;; until so much is queued unread that the stream's is withheld; the reader's progress releases
;;;; it. The connection's window is given back all the same, so that calls nobody reads hold up only
;;;; themselves, until half of max-held-octets waits on the link: then it is dammed, and opened at a
;;;; quarter. What waits, for its rest or for a reader, is charged to the link, since many streams
;;;; with a window each, or with all but the end of a message each, would hold any amount.

(in-package #:clgrpc.rpc)

(defstruct (ledger (:copier nil))
  "The octets that all links of a server, or of a subchannel, are charged with."
  (held 0 :type sb-ext:word))

(declaim (sb-ext:freeze-type ledger))

(defstruct (endpoint (:constructor nil) (:copier nil))
  "What all calls of a subchannel, or of one loop of a server, share."
  (loop nil :type loop:event-loop)
  (options nil :type options)
  (ledger (make-ledger) :type ledger))

(defstruct (wire-call (:include call) (:constructor nil) (:copier nil))
  (endpoint nil :type endpoint)
  (link nil :type (or null link))       ; nil while a client's call waits for a connection
  (stream nil :type (or null http2:stream))
  (headers-sent nil :type boolean)
  (send-closed nil :type boolean)
  (speech nil :type (member nil :begun :over)) ; what its user has sent: anything, the end
  (partial nil :type (or null partial))
  (held 0 :type index))                 ; charged to the link for a part of a message or a request

(define-hot (wire-call-loop :inline t) ((call wire-call)) loop:event-loop
  (endpoint-loop (wire-call-endpoint call)))

(define-hot (wire-call-options :inline t) ((call wire-call)) options
  (endpoint-options (wire-call-endpoint call)))

(define-hot (wire-call-client-p :inline t) ((call wire-call)) boolean
  (operations-client-p (call-operations call)))

(defmethod call-peer ((call wire-call))
  (let ((link (wire-call-link call))) (and link (link-peer link))))

(defmethod call-security ((call wire-call))
  (let ((link (wire-call-link call))) (and link (link-security link))))

(define-hot (outgoing-type :inline t) ((call wire-call)) protobuf:message-type
  (let ((method (the rpc-method (call-rpc-method call))))
    (if (wire-call-client-p call) (rpc-method-request-type method) (rpc-method-response-type method))))

(define-hot (incoming-type :inline t) ((call wire-call)) protobuf:message-type
  (let ((method (the rpc-method (call-rpc-method call))))
    (if (wire-call-client-p call) (rpc-method-response-type method) (rpc-method-request-type method))))

(defun wire-post (call function)
  "The operation POST. Return false if CALL's loop has stopped and will not call FUNCTION."
  (loop:run-or-post (wire-call-loop call) function))

;;; Receiving

(define-hot (ledger-of :inline t) ((link link)) ledger
  (endpoint-ledger (the endpoint (link-owner link))))

(define-hot total-held-limit ((link link)) index
  "How much may be charged to all links of LINK's owner."
  (let ((limit (options-max-total-held-octets (link-options link))))
    (if (zerop limit) (ash (sb-ext:dynamic-space-size) -2) limit)))

(define-hot link-held-limit ((link link)) index
  "How much may be charged to LINK: less while all links together are charged with much."
  (let* ((options (link-options link))
         (least (* 2 (options-max-receive-octets options))))
    (if (< (ledger-held (ledger-of link)) (ash (total-held-limit link) -1))
        (max (options-max-held-octets options) least)
        least)))

(define-hot charge-link ((link link) (count index)) null
  "Charge LINK with COUNT octets."
  (sb-ext:atomic-incf (link-held link) count)
  (sb-ext:atomic-incf (ledger-held (ledger-of link)) count)
  nil)

(define-hot hold ((call wire-call) (count index)) boolean
  "Charge COUNT octets that CALL keeps to its link. False if that is too much: CALL has been ended."
  (let ((link (the link (wire-call-link call))))
    (incf (wire-call-held call) count)
    (charge-link link count)
    (cond ((> (link-held link) (link-held-limit link))
           (operate abort call :resource-exhausted
                    "too many octets of the connection's messages wait (max-held-octets)" :local)
           nil)
          ((> (ledger-held (ledger-of link)) (total-held-limit link))
           (operate abort call :resource-exhausted
                    "too many octets of all messages wait (max-total-held-octets)" :local)
           nil)
          (t t))))

(define-hot discharge ((call wire-call) (count index)) null
  "Take COUNT octets of CALL off its link, and open that if it was dammed and little enough waits
now. From any thread."
  (let ((link (the link (wire-call-link call))))
    (sb-ext:atomic-decf (link-held link) count)
    (sb-ext:atomic-decf (ledger-held (ledger-of link)) count)
    (when (and (link-dammed link) (drained-p link))
      (wire-post call (lambda () (open-dam link))))
    nil))

(define-hot drained-p ((link link)) boolean
  (< (link-held link) (ash (link-held-limit link) -2)))

(defun open-dam (link)
  "Give back LINK's connection window for all that has come, unless it has filled again. On the
loop."
  (when (and (link-dammed link) (drained-p link))
    (setf (link-dammed link) nil)
    (http2:map-streams #'http2:credit-connection (link-http2 link))))

(define-hot credit-link ((call wire-call) (stream http2:stream)) null
  "Give back the connection's window, though not STREAM's, for what CALL holds, unless its link
holds too much."
  (let ((link (the link (wire-call-link call))))
    (cond ((< (link-held link) (ash (link-held-limit link) -1))
           (http2:credit-connection stream))
          (t (setf (link-dammed link) t)
             (sb-thread:barrier (:memory))
             ;; readers may have taken enough before they could see the dam
             (open-dam link)))
    nil))

(define-hot release-held ((call wire-call)) null
  "Take what CALL holds off its link."
  (let ((held (shiftf (wire-call-held call) 0)))
    (when (plusp held) (discharge call held)))
  nil)

(define-hot release-call ((call wire-call)) null
  "CALL's stream is closed: its link is charged with nothing of it any more."
  (let ((extra (call-extra call)))
    (release-held call)
    (when extra
      (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; atomic, hence a raw word
        (discharge call (uncharge extra (extra-queued-octets extra))))))
  nil)

;;; Arriving messages: the short ones of a read are put side by side, and are there for the reader
;;; when the read has been worked through (SEAL-ARRIVALS) or the peer's side ends.

(defconstant +shortest-batch+ 512
  "How long the second batch of a read is at least.")

(define-hot queue-incoming ((call wire-call) item (size index)) null
  "PUSH-INCOMING, charged to CALL's link, behind what came before."
  (seal-batch call)
  (charge-link (the link (wire-call-link call)) (push-incoming call item size))
  nil)

(define-hot open-batch ((call wire-call) (need index)) arrival
  "A batch of CALL with room for NEED octets: the first of a read is as long as its message, the
next longer and longer."
  (let* ((extra (ensure-extra call))
         (link (the link (wire-call-link call)))
         (full (extra-arriving extra))
         (length (if full
                     (max need +shortest-batch+
                          (min +parcel-octets+ (* 2 (length (the octets (arrival-item full))))))
                     need))
         (new (charged-arrival call (make-octets length) length)))
    (if full
        (push-arrival call full)
        (push call (link-arriving link)))
    (charge-link link (arrival-size new))
    (setf (extra-arriving extra) new)))

(define-hot add-to-batch ((call wire-call) (octets octets) (start index) (end index)) null
  "Queue the message in OCTETS, a short one, as soon as the read has been worked through."
  (let* ((extra (call-extra call))
         (batch (and extra (extra-arriving extra)))
         (size (- end start))
         (need (+ 4 size)))
    (unless (and batch (<= (+ (arrival-end batch) need) (length (the octets (arrival-item batch)))))
      (setf batch (open-batch call need)))
    (let ((item (arrival-item batch))
          (at (arrival-end batch)))
      (declare (type octets item))
      (setf (u32be item at) size
            (arrival-end batch) (copy-octets octets start end item (+ 4 at)))))
  nil)

(define-hot seal-batch ((call wire-call)) null
  "Queue what has arrived."
  (let* ((extra (call-extra call))
         (batch (and extra (shiftf (extra-arriving extra) nil))))
    (when batch
      (push-arrival call batch)
      (when (callbacks-p call) (wire-schedule call))))
  nil)

(define-hot seal-arrivals ((link link)) null
  "A read of LINK has been worked through: its calls get what it has brought."
  (loop while (link-arriving link)
        do (seal-batch (pop (link-arriving link)))))

(define-hot acceptable-prefix-p ((call wire-call) (flag octet) (length (unsigned-byte 32))) boolean
  "True if a message with this prefix may come; otherwise CALL has been ended."
  (let ((limit (options-max-receive-octets (wire-call-options call))))
    (cond ((not (or (= flag 0) (and (= flag 1) (packs-p call))))
           (operate abort call :internal
                    (if (= flag 1)
                        "compressed message without grpc-encoding"
                        (format nil "invalid compressed flag ~D" flag))
                    :local)
           nil)
          ((> length limit)
           (operate abort call :resource-exhausted
                    (format nil "message of ~D octets received, limit ~D" length limit) :local)
           nil)
          (t t))))

(define-hot (deliver-message :inline t) ((call wire-call) (flag octet) (octets octets)
                                         (start index) (end index))
    t
  "Deliver a whole message; FLAG is that of its prefix."
  (let ((compression (compression-of call)))
    (when compression (setf (compression-arriving compression) (= flag 1)))
    (operate deliver call octets start end)))

(define-hot receive-partial ((call wire-call) (partial partial) (octets octets) (start index)
                             (end index))
    index
  (let ((at start))
    (declare (type index at))
    (when (< (partial-prefix-fill partial) +prefix-octets+)
      (setf at (add-to-prefix partial octets at end))
      (unless (and (= +prefix-octets+ (partial-prefix-fill partial))
                   (acceptable-prefix-p call (aref (partial-prefix partial) 0)
                                        (partial-length partial)))
        (return-from receive-partial at)))
    (let ((before at))
      (setf at (add-to-partial partial octets at end))
      (when (and (hold call (- at before)) (partial-complete-p partial))
        (release-held call)
        (deliver-message call (aref (partial-prefix partial) 0)
                         (partial-body partial) 0 (partial-length partial))
        (setf (wire-call-partial call) nil)
        (give-octets-back (partial-body partial))))
    at))

(define-hot keep-octets ((call wire-call) (octets octets) (start index) (end index))
    (or parcel packed)
  "In DELIVER, return the octets START to END, a long message, for keeping: a copy, or what the
message was put together in; packed if CALL's peer may compress."
  (let* ((partial (wire-call-partial call))
         (size (- end start))
         (parcel (cond ((and partial (eq octets (partial-body partial)))
                        (setf (partial-body partial) (load-time-value (make-octets 0)))
                        (make-parcel octets end))
                       (t (let ((copy (borrow-octets size)))
                            (copy-octets octets start end copy 0)
                            (make-parcel copy size))))))
    (if (packs-p call)
        (make-packed parcel (compression-arriving (compression-of call)))
        parcel)))

(define-hot (to-keep-p :inline t) ((call wire-call) (size index)) boolean
  "True if a message of SIZE octets is not to be decoded by the loop, nor put beside others."
  (or (> size +parcel-octets+) (packs-p call)))

(define-hot whole-message-p ((octets octets) (at index) (end index)) boolean
  (and (<= (+ at +prefix-octets+) end)
       (<= (+ at +prefix-octets+ (u32be octets (1+ at))) end)))

(define-hot receive-data ((call wire-call) (octets octets) (start index) (end index)) null
  "Take the payload of a DATA frame: deliver each whole message, keep what is left."
  (let ((at start))
    (declare (type index at))
    (loop
      (when (or (= at end) (call-status call)) (return))
      (let ((partial (wire-call-partial call)))
        (cond (partial
               (setf at (receive-partial call partial octets at end)))
              ((whole-message-p octets at end)
               (let* ((body (+ at +prefix-octets+))
                      (next (+ body (u32be octets (1+ at)))))
                 (declare (type index body next))
                 (when (acceptable-prefix-p call (aref octets at) (- next body))
                   (deliver-message call (aref octets at) octets body next))
                 (setf at next)))
              (t (setf (wire-call-partial call) (make-partial))))))
    (give-window call (- end start))))

(define-hot queue-limit ((call wire-call)) index
  "How much may be queued on CALL before window is withheld: a window, but little if its link holds
much."
  (let ((link (the link (wire-call-link call))))
    (if (< (link-held link) (ash (link-held-limit link) -1))
        (options-stream-window-octets (wire-call-options call))
        (* 2 +arrival-octets+))))

(define-hot give-window ((call wire-call) (count index)) null
  (let ((extra (call-extra call))
        (stream (wire-call-stream call)))
    (cond ((null stream))               ; closed by what was delivered
          ((or (null extra) (< (extra-queued-octets extra) (queue-limit call)))
           (http2:consume-data stream count))
          (t (incf (extra-withheld extra) count)
             (setf (extra-starved extra) t)
             (credit-link call stream)
             (sb-thread:barrier (:memory))
             ;; the reader may have emptied the queue before it could see that we starve
             (release-window call)))
    nil))

(define-hot enough-taken-p ((call wire-call) (extra extra)) boolean
  "True if the window that was withheld of CALL can be given back: half of what may be queued was
taken."
  (< (extra-queued-octets extra) (ash (queue-limit call) -1)))

(defun release-window (call)
  "Give back the window that was withheld, unless more has come meanwhile than was taken. On the
loop."
  (let ((extra (call-extra call)))
    (when (and (extra-starved extra) (enough-taken-p call extra))
      (setf (extra-starved extra) nil)
      (let ((count (shiftf (extra-withheld extra) 0)))
        (when (wire-call-stream call)
          (http2:consume-data (wire-call-stream call) count))))))

(define-hot wire-taken ((call wire-call) (size index)) null
  "The operation TAKEN."
  (let ((extra (ensure-extra call)))
    (discharge call size)
    (when (and (extra-starved extra) (enough-taken-p call extra))
      (wire-post call (lambda () (release-window call))))
    nil))

(define-hot parse-incoming ((call wire-call) (octets octets) (start index) (end index)) t
  "The message that the octets are. Signal a PROTOBUF-ERROR if they are none."
  (let ((options (wire-call-options call)))
    (protobuf:parse-octets (incoming-type call) octets start end
                           :depth (options-max-message-depth options)
                           :decoded-octets (options-max-decoded-octets options))))

(define-hot wire-decode ((call wire-call) item (start index) (end index)) t
  "The operation DECODE."
  (typecase item
    (octets (decode-octets call item start end))
    (parcel (let ((octets (parcel-taken item)))
              (prog1 (decode-octets call octets 0 (parcel-end item))
                (give-octets-back octets))))
    (packed (decode-packed call item))
    (t item)))

(define-hot decode-octets ((call wire-call) (octets octets) (start index) (end index)) t
  "The message that OCTETS from START to END are. Signal an RPC-ERROR, which ends CALL as well, if
they are none."
  (handler-case (parse-incoming call octets start end)
    (protobuf:protobuf-error (error)
      (end-undecodable call (unparsable-condition call error start)))))

(defun end-undecodable (call condition)
  "Signal CONDITION, an RPC-ERROR about a message of CALL, and have it end CALL."
  (wire-post call (lambda () (abort-with call condition)))
  (error condition))

(defun decode-packed (call packed)
  "The message that PACKED is. Signal an RPC-ERROR, which ends CALL as well, if it is none."
  (let ((compression (compression-of call))
        (parcel (packed-parcel packed)))
    (setf (compression-received compression) (packed-compressed packed))
    (wire-decode call
                 (if (packed-compressed packed)
                     (decompress-parcel call parcel (compression-incoming compression))
                     parcel)
                 0 0)))

(defun decompress-parcel (call parcel encoding)
  "What PARCEL, which ENCODING has compressed, was before, a parcel."
  (let ((octets (parcel-taken parcel))
        (limit (options-max-receive-octets (wire-call-options call))))
    (multiple-value-bind (outcome result length)
        (os:inflate-octets (encoding-name encoding) octets 0 (parcel-end parcel) limit)
      (give-octets-back octets)
      (if (eq outcome :ok)
          (make-parcel result length)
          (multiple-value-bind (status text) (inflation-problem outcome limit)
            (end-undecodable call (make-rpc-error status :message text :call call
                                                         :peer (call-peer call)
                                                         :ended-by :local)))))))

(defun unparsable-condition (call error start)
  "The RPC-ERROR for octets of CALL that begin at START and are no message, as ERROR says."
  (let ((position (protobuf:protobuf-error-position error)))
    (make-rpc-error :internal
                    :message (format nil "message cannot be parsed~@[ at octet ~D~]: ~A"
                                     (and position (- position start))
                                     (protobuf:protobuf-error-text error))
                    :call call :peer (call-peer call) :ended-by :local :cause error)))

(define-hot deliver-streamed ((call wire-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of calls that take more than one message: into the queue as octets, to be
decoded by whoever receives."
  (let ((size (- end start)))
    (cond ((not (to-keep-p call size)) (add-to-batch call octets start end))
          (t (queue-incoming call (keep-octets call octets start end) size)
             (when (callbacks-p call) (wire-schedule call))))
    nil))

(define-hot half-close-streamed ((call wire-call)) null
  "The operation HALF-CLOSE of calls that take more than one message."
  (seal-batch call)
  (setf (call-half-closed call) t)
  (notify call)
  (when (callbacks-p call) (wire-schedule call))
  nil)

;;; Callbacks run after all connections of the turn were read, never within the protocol core.

(define-hot wire-schedule ((call wire-call)) null
  "The operation SCHEDULE."
  (let ((extra (ensure-extra call)))
    (unless (extra-scheduled extra)
      (setf (extra-scheduled extra) t)
      (loop:defer (wire-call-loop call) #'run-callbacks call))
    nil))

(define-hot run-callback ((call wire-call) (function function)) boolean
  "Run FUNCTION, user code of CALL, with the baton lent; an error in it ends CALL. False if the
baton is lost; then nothing of the loop may be touched."
  (let ((abandoned t))
    (unwind-protect
         (multiple-value-bind (condition baton)
             (flet ((run (call) (with-user-code (call) (funcall function))))
               (declare (dynamic-extent #'run))
               (loop:call-user (wire-call-loop call) #'run call))
           (setf abandoned nil)
           (cond ((eq baton :lost) (resume-callbacks call condition) nil)
                 (t (when condition (abort-with call condition))
                    t)))
      (when abandoned                   ; its thread is ended by force
        (resume-callbacks call (make-rpc-error :internal :message "callback left by a non-local exit"
                                                         :ended-by :local))))))

(defun abort-with (call condition)
  (operate abort call (rpc-error-status condition) (rpc-error-message condition) :local))

(defun resume-callbacks (call condition)
  "Go on on the loop, which this thread does not run any more, after a callback of CALL that ended
with CONDITION or nil."
  (loop:post (wire-call-loop call)
             (lambda ()
               (when condition (abort-with call condition))
               (setf (extra-scheduled (call-extra call)) nil)
               (wire-schedule call))))

(define-hot answers-leave-p ((call wire-call)) boolean
  "False if CALL, a handler's, has more queued than its send budget, since its peer does not take
it: more messages would only make more answers. WIRE-WRITABLE says when to go on."
  (let ((stream (wire-call-stream call)))
    (or (wire-call-client-p call)
        (null stream)
        (< (http2:stream-queued-octets stream)
           (options-send-budget-octets (wire-call-options call))))))

(define-hot room-p ((call wire-call)) boolean
  (plusp (the fixnum (wire-room call))))

(defconstant +messages-at-once+ 16
  "How many messages a callback gets for one lending of the baton: few enough that the watchdog does
not take many quick ones for one that overstays.")

(define-hot message-due-p ((call wire-call) (extra extra)) boolean
  "True if a message of CALL is to be given to its callback."
  (and (extra-on-message extra)
       (or (extra-received extra) (call-incoming call))
       (answers-leave-p call)
       (deliverable-p call)))

(define-hot due-callback ((call wire-call) (extra extra)) (or null function)
  "The callback of CALL, other than that for messages, that is to run next."
  (cond ((and (extra-on-half-close extra) (all-received-p call extra))
         (shiftf (extra-on-half-close extra) nil))
        ((and (extra-on-cancel extra) (cancelled-p call))
         (shiftf (extra-on-cancel extra) nil))
        ((and (extra-on-ended extra) (call-status call))
         (shiftf (extra-on-ended extra) nil))
        ((and (extra-on-writable extra) (extra-writable-wanted extra) (not (call-status call))
              (room-p call))
         (setf (extra-writable-wanted extra) nil)
         (extra-on-writable extra))))

(define-hot run-with-messages ((call wire-call) (extra extra)) boolean
  "Give messages of CALL to its callback, as long as this thread runs the loop. As RUN-CALLBACK."
  (let ((message nil))                  ; kept until its callback returns, if that is run once more
    (flet ((run ()
             (loop repeat +messages-at-once+
                   while (or message (message-due-p call extra))
                   do (setf message (or message (pop-incoming call)))
                      (funcall (the function (extra-on-message extra)) message)
                      (setf message nil)
                   while (loop:in-event-loop-p (wire-call-loop call)))))
      (declare (dynamic-extent #'run))
      (run-callback call #'run))))

(define-hot run-callbacks ((call wire-call)) null
  "Run the callbacks of CALL that are due, one after the other: SCHEDULED is true until the last has
returned, wherever that is, so no two of a call ever run at once."
  (let ((extra (ensure-extra call)))
    (loop
      (when (loop:not-for-driver-p (wire-call-loop call) call)
        (loop:defer (wire-call-loop call) #'run-callbacks call)
        (return nil))
      (unless (if (message-due-p call extra)
                  (run-with-messages call extra)
                  (let ((function (due-callback call extra)))
                    (unless function
                      (setf (extra-scheduled extra) nil)
                      (return nil))
                    (run-callback call function)))
        (return nil)))))

(define-hot all-received-p ((call wire-call) (extra extra)) boolean
  "True if the peer has ended its side well and its last message has been taken."
  (and (null (call-incoming call))
       (null (extra-received extra))
       (null (extra-arriving extra))
       (if (wire-call-client-p call)
           (eq :ok (call-status call))
           (and (call-half-closed call) (not (call-status call))))))

;;; Sending

(defgeneric write-initial-headers (call)
  (:documentation "Send the header block with which CALL's side of its stream begins."))

(define-hot (ensure-headers :inline t) ((call wire-call)) null
  (unless (wire-call-headers-sent call)
    (setf (wire-call-headers-sent call) t)
    (write-initial-headers call))
  nil)

(define-hot (check-send-size :inline t) ((call wire-call) (size index)) null
  (when (> size (options-max-send-octets (wire-call-options call)))
    (refuse-size call size)))

(defun refuse-size (call size)
  (error (make-rpc-error :resource-exhausted :call call :ended-by :local
                         :message (format nil "message of ~D octets to send, limit ~D" size
                                          (options-max-send-octets (wire-call-options call))))))

(define-hot (write-sized :inline t) ((type protobuf:message-type) message (octets octets) (at index)
                                     (size index))
    null
  "Write MESSAGE of TYPE and SIZE, which the sizer has just returned, with its prefix into OCTETS at
AT."
  (let* ((start (write-prefix octets at size))
         (end (funcall (the function (protobuf:message-type-writer type)) message octets start)))
    (unless (eql end (+ start size))
      (error "~S was changed while it was encoded." message))
    nil))

(define-hot encode-message ((call wire-call) message compress)
    (or octets parcel)
  "Return MESSAGE with its prefix for WRITE-ENCODED: fresh octets, or if it is long or compressed a
parcel. COMPRESS as for SEND. From any thread."
  (let* ((type (outgoing-type call))
         (size (protobuf:measure type message))
         (end (+ (the index size) +prefix-octets+))
         (octets (progn (check-send-size call size)
                        (borrow-octets end))))
    (declare (type index size end))
    (write-sized type message octets 0 size)
    (cond ((wants-compression-p call compress size (wire-call-options call))
           (compress-encoded call octets end compress (wire-call-options call)))
          ((= end (length octets)) octets)
          (t (make-parcel octets end)))))

(define-hot encode-unless-short ((call wire-call) message) (or null octets parcel)
  "NIL if WRITE-MESSAGE is sure to write MESSAGE, CALL's only one, at once; else what ENCODE-MESSAGE
returns. Signal an RPC-ERROR if MESSAGE is too long."
  (let ((size (protobuf:measure (outgoing-type call) message)))
    (check-send-size call size)
    (when (or (> size +parcel-octets+) (compresses-p call :auto))
      (encode-message call message :auto))))

(define-hot undecoded-p (item) boolean
  "True if ITEM is a message that WIRE-DECODE has yet to decode."
  (typep item '(or parcel packed)))

(define-hot (encoded-length :inline t) ((encoded (or octets parcel))) index
  "How many octets ENCODED, of ENCODE-MESSAGE, will be sent as."
  (if (typep encoded 'parcel) (parcel-end encoded) (length encoded)))

(define-hot write-message ((call wire-call) message (last boolean)) boolean
  "Send MESSAGE, with END_STREAM if LAST. Return false, with nothing sent, if it is so long that the
loop should not wait for its encoding: then ENCODE-MESSAGE with the baton lent, and WRITE-ENCODED.
On the loop; CALL has a stream and its headers are sent."
  (let* ((stream (the http2:stream (wire-call-stream call)))
         (type (outgoing-type call))
         (size (protobuf:measure type message))
         (total (+ (the index size) +prefix-octets+)))
    (declare (type index size total))
    (check-send-size call size)
    (cond ((http2:reserve-data stream total)
           (multiple-value-bind (octets at) (http2:begin-data stream total)
             (declare (type octets octets) (type index at))
             (write-sized type message octets at size)
             (http2:end-data stream total last))
           t)
          ((<= size +parcel-octets+)
           (write-encoded call (encode-message call message nil) last)
           t))))

(defun write-encoded (call encoded last)
  "Send ENCODED, of ENCODE-MESSAGE, which now belongs to the connection. On the loop."
  (if (typep encoded 'parcel)
      (http2:send-data (wire-call-stream call) (parcel-taken encoded) 0 (parcel-end encoded) last t)
      (http2:send-data (wire-call-stream call) encoded 0 (length encoded) last))
  nil)

(define-hot wire-room ((call wire-call)) fixnum
  "The operation ROOM."
  (let* ((extra (call-extra call))
         (stream (wire-call-stream call)))
    (- (options-send-budget-octets (wire-call-options call))
       (if extra (+ (the index (extra-unsent-octets extra)) (extra-outbox-octets extra)) 0)
       (if stream (http2:stream-queued-octets stream) 0))))

(define-hot (sends-one-p :inline t) ((call wire-call)) boolean
  "True if CALL's method has one message in our direction, which no SEND is for."
  (let ((kind (rpc-method-kind (the rpc-method (call-rpc-method call)))))
    (or (eq kind :unary)
        (eq kind (if (wire-call-client-p call) :server-streaming :client-streaming)))))

(define-hot sendable-p ((call wire-call)) boolean
  "False if CALL has ended with :ok; signal why if nothing may be sent on it."
  (when (sends-one-p call)
    (misuse "~A has one ~:[answer, which is returned or given to REPLY~;request, given to the stub~]."
            call (wire-call-client-p call)))
  (when (eq :over (wire-call-speech call))
    (misuse "~A was told that no more messages will be sent." call))
  (case (call-status call)
    ((nil) t)
    (:ok nil)
    (t (error (call-condition call)))))

(define-hot wire-send ((call wire-call) message wait-p compress) boolean
  "The operation SEND."
  (cond ((not (sendable-p call)) nil)
        ((or (room-p call)
             (and wait-p
                  (progn (wait-for-call call #'room-p)
                         (sendable-p call))))
         (setf (wire-call-speech call) :begun)
         (send-message call message compress)
         t)
        (wait-p nil)
        (t (refuse-to-send call))))

(define-hot send-message ((call wire-call) message compress) null
  "Send MESSAGE from user code: straight into the output if this thread runs the loop and MESSAGE is
short, else encoded first, with nobody waiting for that. COMPRESS as for SEND."
  (unless (and (not (compresses-p call compress))
               (loop:with-baton ((wire-call-loop call))
                   (send-on-loop call message)
                 nil))
    (let ((encoded (encode-message call message compress)))
      (loop:with-baton ((wire-call-loop call))
          (send-encoded call encoded)
        (post-encoded call encoded))))
  nil)

(define-hot refuse-to-send ((call wire-call)) null
  "There is no room for TRY-SEND: have ON-WRITABLE called once there is. Return nil."
  (setf (extra-writable-wanted (ensure-extra call)) t)
  (sb-thread:barrier (:memory))
  ;; the loop may have made room before it could see that it is wanted
  (when (and (room-p call) (callbacks-p call))
    (wire-post call (lambda () (wire-schedule call))))
  nil)

(define-hot send-on-loop ((call wire-call) message) boolean
  "Send MESSAGE, or return false if it is to be encoded first."
  (when (wire-call-stream call)
    (ensure-headers call)
    (write-message call message nil)))

(defun send-encoded (call encoded)
  "Send ENCODED, of ENCODE-MESSAGE, unless CALL has ended. On the loop."
  (cond ((or (call-status call) (wire-call-send-closed call)))
        ((wire-call-stream call)
         (ensure-headers call)
         (write-encoded call encoded nil))
        (t (put-into-outbox call encoded))))

(defun put-into-outbox (call encoded)
  "Keep ENCODED, of ENCODE-MESSAGE, until CALL has a stream. On the loop."
  (let ((extra (ensure-extra call)))
    (incf (extra-outbox-octets extra) (encoded-length encoded))
    (push encoded (extra-outbox extra))))

(defun write-outbox (call)
  "Send what has waited for CALL's stream, and the half-close if that waits too."
  (let* ((extra (call-extra call))
         (frames (and extra (nreverse (shiftf (extra-outbox extra) '())))))
    (when frames (setf (extra-outbox-octets extra) 0))
    (loop for (encoded . more) on frames
          do (write-encoded call encoded (and (wire-call-send-closed call) (null more))))
    (when (and (null frames) (wire-call-send-closed call)) (write-half-close call))
    (notify call)
    (when (callbacks-p call) (wire-schedule call))))

(defun write-half-close (call)
  (http2:send-data (wire-call-stream call) (load-time-value (make-octets 0)) 0 0 t)
  nil)

(defun post-encoded (call encoded)
  "Have the loop send ENCODED, of ENCODE-MESSAGE, charging it to CALL's budget until it does."
  (let ((extra (ensure-extra call))
        (size (encoded-length encoded)))
    (sb-ext:atomic-incf (extra-unsent-octets extra) size)
    (wire-post call
               (lambda ()
                 (sb-ext:atomic-decf (extra-unsent-octets extra) size)
                 (send-encoded call encoded)
                 (when (and (wire-call-stream call) (not (call-status call)) (room-p call))
                   (notify call)
                   (when (callbacks-p call) (wire-schedule call)))))))

(defun wire-writable (stream)
  "The sink's on-writable: the queue of STREAM has fallen under half its budget."
  (let ((call (http2:stream-user stream)))
    (when call
      (notify call)
      (when (callbacks-p call) (wire-schedule call)))))

;;; Deadlines

(define-hot start-deadline ((call wire-call)) null
  "If CALL has a deadline, have it end when that passes. On the loop."
  (when (plusp (call-deadline call))
    (let ((timer (make-timer #'deadline-passed call)))
      (setf (extra-timer (ensure-extra call)) timer)
      (schedule-timer (loop:event-loop-wheel (wire-call-loop call)) timer (call-deadline call))))
  nil)

(defun deadline-passed (call)
  (operate abort call :deadline-exceeded "the deadline passed" :local))

(define-hot stop-timers ((call wire-call)) null
  "CALL has ended: no timer of it is needed any more. A peer may make and cancel calls without end
whose timers would be due much later."
  (let ((extra (call-extra call))
        (wheel (loop:event-loop-wheel (wire-call-loop call))))
    (when extra
      (when (extra-timer extra)
        (cancel-timer wheel (shiftf (extra-timer extra) nil)))
      (when (extra-timers extra)
        (dolist (timer (shiftf (extra-timers extra) '()))
          (cancel-timer wheel timer)))))
  nil)

(defmethod after ((call wire-call) seconds function)
  (let ((due (deadline-in (seconds-ns seconds) (monotonic-ns)))
        (loop (wire-call-loop call))
        (timer nil))
    (labels ((run (call)
               (cond ((call-status call))
                     ((loop:not-for-driver-p loop call) (loop:defer loop #'run call))
                     (t (run-callback call function))))
             (ring (call)
               (let ((extra (ensure-extra call)))
                 (setf (extra-timers extra) (delete timer (extra-timers extra))))
               (loop:defer loop #'run call)))
      (setf timer (make-timer #'ring call))
      (wire-post call (lambda ()
                        (unless (call-status call)
                          (push timer (extra-timers (ensure-extra call)))
                          (schedule-timer (loop:event-loop-wheel loop) timer due))))))
  nil)
