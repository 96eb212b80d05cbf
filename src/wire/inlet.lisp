;;;; Incoming messages, from the payload of DATA frames to the message that a reader gets.
;;;;
;;;; The short messages of one read are put side by side in a batch. The reader gets the batch when
;;;; the read has been worked through (SEAL-ARRIVALS) or the peer's side ends. The window is
;;;; returned as octets arrive, so that a message larger than the window can arrive. When too much
;;;; is queued unread, the stream's window is withheld until the reader has taken half of it.

(in-package #:clgrpc.wire)

(define-hot batch-message ((call wire-call) (octets octets) (start index) (end index)) null
  "Add the short message in OCTETS to CALL's batch, which is queued when the whole read was
processed."
  (multiple-value-bind (charge first) (add-to-batch call octets start end +parcel-octets+)
    (let ((link (the link (wire-call-link call))))
      (when first (push call (link-arriving link)))
      (when (plusp charge) (charge-link link charge))))
  nil)

(define-hot seal-inlet ((call wire-call) (inlet wire-inlet)) null
  "See SEAL-BATCH; INLET is CALL's."
  (when (and (queue-batch call inlet) (callbacks-p call)) (wire-schedule call))
  nil)

(define-hot (seal-batch :inline t) ((call wire-call)) null
  "Queue the messages of CALL that have arrived."
  (let ((inlet (call-wire-inlet call)))
    (when inlet (seal-inlet call inlet)))
  nil)

(define-hot queue-incoming ((call wire-call) item (size index)) null
  "Queue ITEM, of SIZE octets, after the earlier arrivals, and charge it to CALL's link."
  (seal-batch call)
  (charge-link (the link (wire-call-link call)) (push-incoming call item size))
  nil)

(define-hot seal-link ((link link)) null
  "Queue the batches of calls with messages of the read of LINK that has been worked through."
  (loop while (link-arriving link)
        do (seal-batch (pop (link-arriving link)))))

(define-hot seal-arrivals ((call wire-call)) null
  "As SEAL-LINK, for the messages in CALL's body, which were read by another protocol than HTTP/2."
  (seal-link (the link (wire-call-link call))))

(define-hot acceptable-prefix-p ((call wire-call) (flag octet) (length (unsigned-byte 32))) boolean
  "True if a message with this prefix is allowed; otherwise CALL was ended."
  (let ((limit (receive-limit call)))
    (cond ((not (or (= flag 0) (and (= flag 1) (packs-p call))))
           (if (= flag 1)
               (abort-as call :not-to-be-compressed)
               (abort-as call :unknown-flag flag))
           nil)
          ((> length limit)
           (abort-as call :too-long-received length limit)
           nil)
          (t t))))

(define-hot (deliver-message :inline t) ((call wire-call) (flag octet) (octets octets)
                                         (start index) (end index))
    t
  "Deliver a whole message; FLAG is that of its prefix."
  (note-message-received (the link (wire-call-link call)))
  (let ((compression (compression-of call)))
    (when compression
      (setf (compression-arriving compression) (= flag 1)
            (compression-told compression)
            (and (= flag 1)
                 (inflated-size (compression-incoming compression) octets start end))))
    (tell-received call (- end start))
    (observe content-received (call-observer call) call octets start end
             (and (= flag 1) (encoding-name (compression-incoming compression))))
    (operate deliver call octets start end)))

(defun deliver-alone (call compressed octets start end)
  "Deliver a message of CALL that was received completely and without a prefix; COMPRESSED is true
if it is compressed."
  (deliver-message call (if compressed 1 0) octets start end))

(defun refuse-body (call partial at)
  "End CALL, since the heap has no room for the message of PARTIAL. Return AT."
  (abort-as call :no-room-in-heap (partial-length partial))
  at)

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
    (let ((before (partial-room partial)))
      (setf at (or (add-to-partial partial octets at end)
                   (return-from receive-partial (refuse-body call partial at))))
      (when (and (or (= before (partial-room partial))
                     (hold call (- (partial-room partial) before)))
                 (partial-complete-p partial))
        (release-held call)
        (deliver-message call (aref (partial-prefix partial) 0)
                         (partial-body partial) 0 (partial-length partial))
        (setf (wire-inlet-partial (the wire-inlet (call-wire-inlet call))) nil)
        (give-octets-back (partial-body partial))))
    at))

(defconstant +little-octets+ 256
  "The most compressed octets of a message of unknown length that is decompressed on the loop.")

(defun long-parcel-p (parcel encoding)
  "True if PARCEL, compressed by ENCODING, is long once it is decompressed, or may be, by its own
data."
  (let ((size (inflated-size encoding (parcel-octets parcel) 0 (parcel-end parcel))))
    (if (integerp size)
        (< +short-octets+ size)
        (< +little-octets+ (parcel-end parcel)))))

(define-hot keep-octets ((call wire-call) (octets octets) (start index) (end index))
    (values (or parcel packed) boolean)
  "Return a parcel with the octets START to END, a long message that DELIVER has got. It has a copy
of them, or the vector in which the message was put together. If CALL's peer may compress, the value
is a PACKED of the parcel. The second value is true if the message is, or may be, long once it is
decompressed."
  (let* ((partial (wire-call-partial call))
         (size (- end start))
         (parcel (cond ((and partial (eq octets (partial-body partial)))
                        (setf (partial-body partial) (load-time-value (make-octets 0)))
                        (make-parcel octets end))
                       (t (let ((copy (borrow-octets size)))
                            (copy-octets octets start end copy 0)
                            (make-parcel copy size))))))
    (if (packs-p call)
        (let ((compression (compression-of call)))
          (values (make-packed parcel (compression-arriving compression))
                  (and (compression-arriving compression)
                       (long-parcel-p parcel (compression-incoming compression)))))
        (values parcel nil))))

(define-hot (to-keep-p :inline t) ((call wire-call) (size index)) boolean
  "True if a message of SIZE octets becomes a parcel: the loop neither decodes it nor puts it into a
batch."
  (or (> size +parcel-octets+)
      (packs-p call)
      (protobuf:coded-type-p (incoming-type call)))) ; a user's function decodes it

(define-hot whole-message-p ((octets octets) (at index) (end index)) boolean
  (and (<= (+ at +prefix-octets+) end)
       (<= (+ at +prefix-octets+ (u32be octets (1+ at))) end)))

(define-hot receive-messages ((call wire-call) (octets octets) (start index) (end index)) null
  "Take octets of length-prefixed messages: deliver each whole message, and keep the rest."
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
              (t (setf (wire-inlet-partial (ensure-wire-inlet call)) (make-partial))))))
    nil))

(define-hot queue-limit ((call wire-call)) index
  "The octets that may be queued on CALL before its window is withheld: as many as a window has, but
few if its link holds much."
  (let ((link (the link (wire-call-link call)))
        (options (wire-call-options call)))
    (if (or (< (link-held link) (options-max-receive-octets options)) ; half the least limit
            (< (link-held link) (ash (link-held-limit link) -1)))
        (options-stream-window-octets options)
        (* 2 +arrival-octets+))))

(define-hot queue-full-p ((call wire-call) &optional (half boolean nil)) boolean
  "True if the unread octets on CALL reach the limit at which its window is withheld; with HALF,
half of that limit, below which the window is returned."
  (let ((inlet (call-wire-inlet call)))
    (and inlet
         (<= (if half (ash (queue-limit call) -1) (queue-limit call))
             (wire-inlet-queued-octets inlet)))))

(define-hot (give-window :inline t) ((call wire-call) (count index)) null
  "Give back the window of COUNT octets that CALL has received, unless too much of it is queued."
  (let ((inlet (call-wire-inlet call))
        (stream (wire-call-stream call)))
    (cond ((null stream))               ; closed by a delivered message
          ((or (null inlet) (not (queue-full-p call)))
           (http2:consume-data stream count))
          (t (incf (wire-inlet-withheld inlet) count)
             (trace-event :flowctl :window-withheld :call call :octets (wire-inlet-withheld inlet))
             (credit-link call stream)
             (sb-thread:barrier (:memory))
             ;; the reader may have emptied the queue just before it could see WITHHELD
             (release-window call)))
    nil))

(define-hot receive-data ((call wire-call) (octets octets) (start index) (end index)) null
  "Take the payload of a DATA frame, and give window back for it."
  (receive-messages call octets start end)
  (give-window call (- end start)))

(defun release-window (call)
  "Give back the window that was withheld of CALL, unless too much is queued again. On the loop."
  (let ((inlet (call-wire-inlet call)))
    (when (and (plusp (wire-inlet-withheld inlet)) (not (queue-full-p call t)))
      (let ((count (shiftf (wire-inlet-withheld inlet) 0)))
        (trace-event :flowctl :window-given-back :call call :octets count)
        (when (wire-call-stream call)
          (http2:consume-data (wire-call-stream call) count))))))

(define-hot wire-taken ((call wire-call) (size index)) null
  "The operation TAKEN."
  (let ((inlet (ensure-wire-inlet call)))
    (discharge call size)
    (when (and (plusp (wire-inlet-withheld inlet)) (not (queue-full-p call t)))
      (wire-post call (lambda () (release-window call))))
    nil))

(define-hot (parse-incoming :inline t) ((call wire-call) (octets octets) (start index) (end index)
                            (consume boolean))
    (values t boolean fixnum)
  "Decode the octets; return the message. With CONSUME, the message may keep OCTETS as a part of it:
then the second value is true. The third is the memory, in octets, that the messages inside it take.
Signal a PROTOBUF-ERROR if the octets are not a message."
  (let ((options (wire-call-options call))
        (type (incoming-type call)))
    (if (protobuf:coded-type-p type)
        (values (protobuf:decode-coded type octets start end) nil 0)
        (protobuf:parse-received type octets start end
                                 (options-max-message-depth options)
                                 (options-max-decoded-octets options)
                                 consume))))

(define-hot wire-decode ((call wire-call) item (start index) (end index)) t
  "The operation DECODE."
  (typecase item
    (octets (values (decode-octets call item start end nil)))
    (parcel (decode-parcel call item))
    (packed (decode-packed call item #'decode-parcel))
    (t item)))

(define-hot decode-parcel ((call wire-call) (parcel parcel)) t
  "Decode PARCEL as DECODE-OCTETS does; return the message."
  (let ((octets (parcel-taken parcel)))
    (multiple-value-bind (message kept)
        (decode-octets call octets 0 (parcel-end parcel) (<= +own-octets+ (length octets)))
      (unless kept (give-octets-back octets))
      message)))

(define-hot decode-octets ((call wire-call) (octets octets) (start index) (end index)
                           (consume boolean))
    (values t boolean)
  "Decode OCTETS from START to END; return the message. With CONSUME, the second value is true if
the message has kept OCTETS. If they are not a message, signal an RPC-ERROR, which ends CALL as
well."
  (handler-case (multiple-value-bind (message kept) (parse-incoming call octets start end consume)
                  (values message kept))
    (protobuf:protobuf-error (error)
      (end-undecodable call (unparsable-condition call error start)))))

(defun end-undecodable (call condition)
  "Signal CONDITION, an RPC-ERROR about a message of CALL, and end CALL with it."
  (wire-post call (lambda () (abort-as call condition)))
  (error condition))

(defconstant +free-times+ 8
  "A compressed message of Protocol Buffers is timed only if it becomes more than this many times as
long.")

(defun decode-packed (call packed decode &optional (times +free-times+))
  "Decompress PACKED, a message of CALL, if it is compressed, and return its value under DECODE, a
function of CALL and a parcel. The time of a message that becomes more than TIMES as long counts for
its peer (decompression-budget.lisp). If the octets cannot be decompressed, signal an RPC-ERROR,
which ends CALL as well; if CALL ends while it waits for its peer's turn, signal its RPC-ERROR."
  (declare (type function decode))
  (let ((compression (compression-of call))
        (parcel (packed-parcel packed)))
    (setf (compression-received compression) (packed-compressed packed))
    (if (packed-compressed packed)
        (decode-compressed call parcel (compression-incoming compression) decode times)
        (funcall decode call parcel))))

(defun decode-compressed (call parcel encoding decode times)
  "See DECODE-PACKED; PARCEL is compressed by ENCODING."
  (declare (type function decode))
  (let* ((octets (parcel-taken parcel))
         (came (parcel-end parcel))
         (limit (receive-limit call))
         (budget (link-budget (the link (wire-call-link call))))
         (free (if budget (min limit (* times came)) limit))
         (size (inflated-size encoding octets 0 came)))
    (flet ((inflate (most) (decompress-octets encoding octets came most))
           (finish (outcome result length)
             (give-octets-back octets)
             (if (eq :ok outcome)
                 (funcall decode call (make-parcel result length))
                 (end-undecompressed call outcome limit))))
      (multiple-value-bind (outcome result length)
          (if (and (integerp size) (< free size)) (values :too-long nil 0) (inflate free))
        (if (and (eq :too-long outcome) budget)
            (call-on-budget call budget came
                            (lambda () (multiple-value-call #'finish (inflate limit))))
            (finish outcome result length))))))

(defun end-undecompressed (call outcome limit)
  "Signal an RPC-ERROR for OUTCOME of decompressing a message of CALL, and end CALL with it."
  (multiple-value-bind (status text) (failed-inflation call outcome limit)
    (end-undecodable call (make-rpc-error status :message text :call call
                                                 :peer (call-peer call)
                                                 :ended-by :local))))

(defun call-on-budget (call budget came function)
  "See CALL-CHARGED; FUNCTION decompresses and decodes a message of CALL of which CAME octets were
received. These are charged to CALL's link meanwhile, since they may wait for long."
  (with-undoing ((charge-link (the link (wire-call-link call)) came)
                 (discharge call came))
    (call-charged call budget (options-decompression-percent (wire-call-options call))
                  (* came +earned-octet-ns+) function)))

(defun unparsable-condition (call error start)
  "The RPC-ERROR for octets of CALL that begin at START and are not a message, because of ERROR."
  (let ((position (protobuf:protobuf-error-position error)))
    (make-rpc-error :internal
                    :message (format nil "message cannot be parsed~@[ at octet ~D~]: ~A"
                                     (and position (- position start))
                                     (protobuf:protobuf-error-text error))
                    :call call :peer (call-peer call) :ended-by :local :cause error)))

(define-hot deliver-streamed ((call wire-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of calls that take more than one message: queue the octets, which the
receiving thread decodes."
  (let ((size (- end start)))
    (cond ((not (to-keep-p call size)) (batch-message call octets start end))
          (t (queue-incoming call (keep-octets call octets start end) size)
             (when (callbacks-p call) (wire-schedule call))))
    (incf (wire-inlet-arrived (the wire-inlet (call-wire-inlet call))))
    nil))

(define-hot half-close-streamed ((call wire-call)) null
  "The operation HALF-CLOSE of calls that take more than one message."
  (seal-batch call)
  (setf (wire-call-half-closed call) t)
  (notify call)
  (when (callbacks-p call) (wire-schedule call))
  nil)
