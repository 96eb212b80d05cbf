;;;; Incoming messages, from the payload of DATA frames to the message that a reader gets.
;;;;
;;;; The short messages of one read are put side by side into a batch. The reader gets the batch
;;;; when the whole read has been processed (SEAL-LINK) or the peer's side ends. The window is
;;;; returned as octets arrive, so that a message larger than the window can arrive. When too many
;;;; octets are queued unread, the stream's window is withheld until the reader has taken half of
;;;; them.

(in-package #:clgrpc.wire)

(define-hot batch-messages ((call wire-call) (octets octets) (start index) (end index)
                            (bare boolean))
    null
  "Add the short messages in OCTETS to CALL's batch, which is queued when the whole read has been
processed. BARE is as for ADD-TO-BATCH."
  (multiple-value-bind (charge first)
      (add-to-batch call octets start end bare +byte-buffer-octets+)
    (let ((link (the link (wire-call-link call))))
      (when first (push call (link-arriving link)))
      (when (plusp charge) (charge-link link charge))))
  nil)

(define-hot seal-inbound ((call wire-call) (inbound wire-inbound)) null
  "Do what SEAL-BATCH does; INBOUND is CALL's part."
  (when (and (wire-inbound-batch inbound) (queue-batch call inbound)) (schedule-callbacks call))
  nil)

(define-hot (seal-batch :inline t) ((call wire-call)) null
  "Queue the messages of CALL that have arrived."
  (let ((inbound (call-wire-inbound call)))
    (when inbound (seal-inbound call inbound)))
  nil)

(define-hot queue-incoming ((call wire-call) item (size index)) null
  "Queue ITEM, of SIZE octets, after earlier batches, and charge CALL's link with its octets."
  (seal-batch call)
  (charge-link (the link (wire-call-link call)) (push-incoming call item size))
  nil)

(define-hot seal-link ((link link)) null
  "Queue the batches of all calls that had messages in the read of LINK that has been processed."
  (loop while (link-arriving link)
        do (seal-batch (pop (link-arriving link)))))

(define-hot (seal-unless-http2 :inline t) ((call wire-call)) null
  "Queue the messages of CALL that have arrived by another protocol than HTTP/2, which has no
SEAL-LINK at the end of a read."
  (let ((link (the link (wire-call-link call))))
    (unless (link-http2 link) (seal-link link)))
  nil)

(define-hot acceptable-prefix-p ((call wire-call) (flag octet) (length (unsigned-byte 32))) boolean
  "Return true if a message with this prefix is allowed; otherwise end CALL and return false."
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
  "Deliver a whole message; FLAG is the flag in its prefix."
  (note-messages-received (the link (wire-call-link call)) 1)
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
  (deliver-message call (if compressed 1 0) octets start end)
  (seal-unless-http2 call))

(defun refuse-body (call partial at)
  "End CALL, because the heap has no room for the message of PARTIAL. Return AT."
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
        (setf (wire-inbound-partial (the wire-inbound (call-wire-inbound call))) nil)
        (give-octets-back (partial-body partial))))
    at))

(defconstant +little-octets+ 256
  "The maximum length in octets of a compressed message, of unknown decompressed length, that the
loop decompresses itself.")

(defun long-message-p (byte-buffer encoding)
  "True if the data of BYTE-BUFFER, compressed by ENCODING, show that the decompressed message is
long or may be long."
  (let ((size (inflated-size encoding (byte-buffer-octets byte-buffer)
                             0 (byte-buffer-end byte-buffer))))
    (if (integerp size)
        (< +short-octets+ size)
        (< +little-octets+ (byte-buffer-end byte-buffer)))))

(define-hot keep-octets ((call wire-call) (octets octets) (start index) (end index))
    (values byte-buffer boolean)
  "Return a byte buffer with the octets START to END, a long message that DELIVER has received. The
buffer has a copy of the octets, or the vector in which the message was put together. The second
value is true if the decompressed message is long or may be long."
  (let* ((partial (wire-call-partial call))
         (size (- end start))
         (byte-buffer (cond ((and partial (eq octets (partial-body partial)))
                             (setf (partial-body partial) (load-time-value (make-octets 0)))
                             (make-byte-buffer octets end))
                            (t (let ((copy (borrow-octets size)))
                                 (copy-octets octets start end copy 0)
                                 (make-byte-buffer copy size))))))
    (if (packs-p call)
        (let ((compression (compression-of call)))
          (setf (byte-buffer-compressed byte-buffer) (compression-arriving compression))
          (values byte-buffer
                  (and (compression-arriving compression)
                       (long-message-p byte-buffer (compression-incoming compression)))))
        (values byte-buffer nil))))

(define-hot (to-keep-p :inline t) ((call wire-call) (size index)) boolean
  "True if a message of SIZE octets becomes a byte buffer, which the loop neither decodes nor puts
into a batch."
  (or (> size +byte-buffer-octets+)
      (packs-p call)
      (protobuf:coded-type-p (incoming-type call)))) ; then a user's function decodes it

(define-hot (whole-message-p :inline t) ((octets octets) (at index) (end index)) boolean
  (and (<= (+ at +prefix-octets+) end)
       (<= (+ at +prefix-octets+ (u32be octets (1+ at))) end)))

(define-hot short-messages ((octets octets) (start index) (end index) (limit index))
    (values index index)
  "Find the complete messages that begin at START, have at most LIMIT octets each and are not
compressed. Return two values: the position after these messages, and their number. Together with
their prefixes they have at most +BYTE-BUFFER-OCTETS+, unless the first message alone has more."
  (let ((at start) (count 0))
    (declare (type index at count))
    (loop
      (unless (and (whole-message-p octets at end)
                   (zerop (aref octets at))
                   (<= (u32be octets (1+ at)) limit))
        (return))
      (let ((next (+ at +prefix-octets+ (u32be octets (1+ at)))))
        (unless (or (zerop count) (<= (- next start) +byte-buffer-octets+)) (return))
        (setf at next)
        (incf count)))
    (values at count)))

(define-hot receive-more ((call wire-call) (octets octets) (start index) (end index)) index
  "Add the complete short messages at START to CALL's batch, and return the position after them.
Nothing else is needed, because the batch was begun in this read: DELIVER has done all other work
that a message causes, and CALL has no observer. The batch also shows that short messages of CALL, a
call of gRPC, do not become byte buffers."
  (let ((inbound (call-wire-inbound call))
        (at start))
    (declare (type index at))
    (when (and inbound
               (wire-inbound-batch inbound)
               (null (wire-inbound-partial inbound))
               (null (compression-of call))
               (null (call-observer call))
               (null (call-status call)))
      (let ((limit (min (receive-limit call) +byte-buffer-octets+)))
        (loop
          (multiple-value-bind (after count) (short-messages octets at end limit)
            (when (zerop count) (return))
            (note-messages-received (the link (wire-call-link call)) count)
            (batch-messages call octets at after nil)
            (incf (wire-inbound-arrived inbound) count)
            (setf at after)))))
    at))

(define-hot receive-messages ((call wire-call) (octets octets) (start index) (end index)
                              &optional (grpc boolean nil))
    null
  "Handle octets of length-prefixed messages: deliver each complete message, and keep the rest. GRPC
is true for a call of gRPC. For other protocols RECEIVE-MORE is not used, because their DELIVER must
see each message."
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
                 (setf at (if (and grpc (< next end))
                              (receive-more call octets next end)
                              next))))
              (t (setf (wire-inbound-partial (ensure-wire-inbound call)) (make-partial))))))
    (seal-unless-http2 call)))

(define-hot queue-limit ((call wire-call)) index
  "Return the number of octets that may be queued on CALL before its window is withheld. It is the
size of a window, but small if CALL's link holds many octets."
  (let ((link (the link (wire-call-link call)))
        (options (wire-call-options call)))
    (if (or (< (link-held link) (options-max-receive-octets options)) ; half of the least limit
            (< (link-held link) (ash (link-held-limit link) -1)))
        (options-stream-window-octets options)
        (* 2 +batch-octets+))))

(define-hot queue-full-p ((call wire-call) &optional (half boolean nil)) boolean
  "True if the number of unread octets on CALL reaches the limit at which its window is withheld. If
HALF is true, half of that limit counts, below which the window is returned."
  (let ((inbound (call-wire-inbound call)))
    (and inbound
         (<= (if half (ash (queue-limit call) -1) (queue-limit call))
             (wire-inbound-queued-octets inbound)))))

(define-hot call-connection-protocol ((call wire-call)) (or null connection-protocol)
  "Return the protocol of the link of CALL, which has no stream, or nil for HTTP/2."
  (let ((link (wire-call-link call)))
    (and link (link-protocol link))))

(define-hot (give-window :inline t) ((call wire-call) (count index)) null
  "Return the window of COUNT octets that CALL has received, or withhold it if too many octets of
CALL are queued. A link without HTTP/2 has no windows and stops reading CALL's body in that case."
  (let ((inbound (call-wire-inbound call))
        (stream (wire-call-stream call)))
    (cond ((zerop count))
          ((or (null inbound) (not (queue-full-p call)))
           (when stream (http2:consume-data stream count)))
          ((or stream (and (call-connection-protocol call) (null (call-status call))))
           (incf (wire-inbound-withheld inbound) count)
           (trace-event :flowctl :window-withheld
                        :call call :octets (wire-inbound-withheld inbound))
           (if stream
               (credit-link call stream)
               (funcall (connection-protocol-pause (call-connection-protocol call)) call t))
           (sb-thread:barrier (:memory))
           ;; the reader may have emptied the queue just before it could see WITHHELD
           (release-window call)))      ; otherwise a delivered message has closed the stream
    nil))

(define-hot receive-data ((call wire-call) (octets octets) (start index) (end index)
                          &optional (receive (or null function) nil))
    null
  "Handle the payload of a DATA frame, or octets of a body over HTTP/1.1, by RECEIVE, a function of
these arguments, or as messages of gRPC if RECEIVE is nil. Then return the window."
  (if receive
      (funcall receive call octets start end)
      (let ((at (receive-more call octets start end)))
        (when (< at end) (receive-messages call octets at end t))))
  (give-window call (- end start)))

(defun release-window (call)
  "Return the withheld window of CALL, or continue to read over HTTP/1.1, unless too many octets are
queued again. On the loop."
  (let ((inbound (call-wire-inbound call)))
    (when (and (plusp (wire-inbound-withheld inbound)) (not (queue-full-p call t)))
      (let ((count (shiftf (wire-inbound-withheld inbound) 0)))
        (cond ((wire-call-stream call)
               (trace-event :flowctl :window-given-back :call call :octets count)
               (http2:consume-data (wire-call-stream call) count))
              ((and (call-connection-protocol call) (null (call-status call)))
               (funcall (connection-protocol-pause (call-connection-protocol call)) call nil)))))))

(define-hot wire-taken ((call wire-call) (size index)) null
  "The operation TAKEN."
  (let ((inbound (ensure-wire-inbound call)))
    (discharge call size)
    (when (and (plusp (wire-inbound-withheld inbound)) (not (queue-full-p call t)))
      (wire-post call (lambda () (release-window call))))
    nil))

(defconstant +free-times+ 8
  "The factor above which a compressed message of Protocol Buffers must grow so that the time of its
decoding is measured.")

;;; A message is decoded by a function of its call, the octets, their start and end, and CONSUME.
;;; The function returns the message, or the RPC-ERROR that ends the call. The second value is true
;;; if the message keeps the octets as a part of it, which CONSUME allows; the third is the memory,
;;; in octets, that the messages inside it take. A function for DECODE-ITEM has two more arguments,
;;; MOST and BEYOND: the messages inside may take MOST octets beyond eight times the length of the
;;; message. If they take more, BEYOND, unless it is nil, is called and exits non-locally.

(define-hot (decode-message :inline t) ((call wire-call) (octets octets) (start index)
                                        (end index) (consume boolean))
    (values t boolean fixnum)
  "Decode a message of gRPC."
  (let ((options (wire-call-options call))
        (type (incoming-type call)))
    (handler-case
        (if (protobuf:coded-type-p type)
            (values (protobuf:decode-coded type octets start end) nil 0)
            (protobuf:parse-received type octets start end
                                     (options-max-message-depth options)
                                     (options-max-decoded-octets options)
                                     consume))
      (protobuf:protobuf-error (error)
        (values (unparsable-condition call error start) nil 0)))))

(defun end-undecodable (call condition)
  "End CALL with CONDITION, an RPC-ERROR about a message of CALL, and signal CONDITION."
  (wire-post call (lambda () (abort-as call condition)))
  (error condition))

(define-hot decode-item ((call wire-call) item (start index) (end index)
                         &optional (decode function #'decode-within) (text boolean nil))
    t
  "The operation DECODE for a CALL whose messages the function DECODE decodes. TEXT is true if the
octets are text; then DECODE ignores MOST and BEYOND. If the peer has a budget, a compressed message
is charged to the budget if it becomes more than +FREE-TIMES+ times as long, or, if it is text, if
it becomes longer. If a message cannot be decoded, signal an RPC-ERROR, which ends CALL as well. If
CALL ends while a message waits for its peer's turn, signal CALL's RPC-ERROR."
  (flet ((decode (call octets start end consume)
           (decode-with-room call octets start end consume decode text)))
    (declare (dynamic-extent #'decode))
    (typecase item
      (octets (let ((message (values (decode call item start end nil))))
                (if (failure-p message) (end-undecodable call message) message)))
      (byte-buffer (decode-byte-buffer call item #'decode (if text 1 +free-times+)))
      (t item))))

(defconstant +roomless-octets+ 1024
  "The maximum length in octets of a message that is decoded without regard to the memory of the
messages inside it. In this length, 512 empty messages of a type with 250 fields take 1 MB.")

(define-hot wire-decode ((call wire-call) item (start index) (end index)) t
  "The operation DECODE for messages of gRPC. It does what DECODE-ITEM does, but is faster for short
messages."
  (if (and (typep item 'octets) (<= (- end start) +roomless-octets+))
      (let ((message (values (decode-message call item start end nil))))
        (if (failure-p message) (end-undecodable call message) message))
      (decode-item call item start end)))

;;; Room in the heap. A few octets may become a message of many small objects, and hundreds of
;;; threads may decode such messages at once. So a message of more than +BYTE-BUFFER-OCTETS+ is
;;; decoded only when room for its objects is promised. Few messages need all the memory that they
;;; may take, so each message is first read with little memory for the messages inside it, and read
;;; again if these take more. A shorter message gets a promise only when it is read again; the
;;; shortest get none.

(defconstant +usual-octets+ (expt 2 20)
  "The maximum number of octets of memory that the messages inside a message usually take in
addition to eight times its length.")

(defconstant +inside-times+ 512
  "The number of octets of memory that the messages inside a text may take for each octet of the
text. It follows from two facts: each message has at least two octets, and few types of messages
have more than a hundred fields.")

(defconstant +value-times+ 24
  "The number of octets of memory that the other values of a message may take for each octet of the
message.")

(defun decoding-room (call size)
  "Return the approximate number of octets of the heap that a message of CALL, of SIZE octets, may
take when it is decoded. It is at most a quarter of the heap, because most long messages take little
more than their octets."
  (min (ash (heap-size) -2)
       (+ (options-max-decoded-octets (wire-call-options call)) (* +value-times+ size))))

(defun call-in-room (call room size decode)
  "Call DECODE, which decodes a message of CALL with SIZE octets, while ROOM octets of the heap are
promised for this message, and return its values. If the heap has no room, signal an RPC-ERROR,
which ends CALL as well."
  (handler-bind ((error (lambda (error)
                          (when (failure-p error)
                            (wire-post call (lambda () (abort-as call error)))))))
    (call-with-room call room (wire-call-options call) decode :long nil :received size)))

(defun decode-in-passes (call octets start end consume decode)
  "Call DECODE with these arguments, MOST and BEYOND, and return its values. For a message that is
long, or takes much memory, room for its objects is promised first."
  (declare (type function decode) (type index start end))
  (let* ((size (- end start))
         (most (options-max-decoded-octets (wire-call-options call)))
         (usual (min +usual-octets+ most))
         (room (+ (* 8 size) usual)))
    (declare (type index size most))
    (when (or (<= size +byte-buffer-octets+) (< room (decoding-room call size)))
      (block usual
        (flet ((usual ()
                 (flet ((beyond () (return-from usual)))
                   (declare (dynamic-extent #'beyond))
                   (return-from decode-in-passes
                     (funcall decode call octets start end consume usual
                              (and (< usual most) #'beyond))))))
          (declare (dynamic-extent #'usual))
          (if (<= size +byte-buffer-octets+)
              (usual)
              (call-in-room call room size #'usual)))))
    (flet ((decode () (funcall decode call octets start end consume most nil)))
      (declare (dynamic-extent #'decode))
      (call-in-room call (decoding-room call size) size #'decode))))

(defun decode-with-room (call octets start end consume decode text)
  "Call DECODE with these arguments, MOST and BEYOND, and return its values. DECODE and TEXT are as
for DECODE-ITEM. The length of a text bounds the memory of its messages, and reading it twice would
take long. Therefore the maximum room that a text may need is promised at once, unless that room is
small."
  (declare (type function decode) (type index start end))
  (let ((size (- end start)) (type (incoming-type call)))
    (declare (type index size))
    (flet ((decode ()
             (funcall decode call octets start end consume
                      (options-max-decoded-octets (wire-call-options call)) nil)))
      (declare (dynamic-extent #'decode))
      (cond ((or (<= size +roomless-octets+) (protobuf:coded-type-p type)) (decode))
            ((not text) (decode-in-passes call octets start end consume decode))
            ((or (<= (* +inside-times+ size) +usual-octets+)
                 (protobuf:raw-type-p type)) ; DECODE itself requests room
             (decode))
            (t (call-in-room call
                             (min (decoding-room call size)
                                  (* (+ +inside-times+ +value-times+) size))
                             size #'decode))))))

(defun decode-within (call octets start end consume most beyond)
  "Do what DECODE-MESSAGE does, for DECODE-ITEM."
  (if (protobuf:coded-type-p (incoming-type call))
      (decode-message call octets start end consume)
      (handler-case
          (protobuf:parse-received (incoming-type call) octets start end
                                   (options-max-message-depth (wire-call-options call))
                                   most consume :beyond beyond)
        (protobuf:protobuf-error (error)
          (values (unparsable-condition call error start) nil 0)))))

(define-hot decode-taken ((call wire-call) (octets octets) (end index) (decode function)) t
  "Return the message of CALL in OCTETS up to END. OCTETS are returned to the store unless the
message keeps them."
  (multiple-value-bind (message kept)
      (funcall decode call octets 0 end (<= +own-octets+ (length octets)))
    (when (failure-p message) (end-undecodable call message))
    (unless kept (give-octets-back octets))
    message))

(define-hot decode-byte-buffer ((call wire-call) (byte-buffer byte-buffer) (decode function)
                                (times (integer 1 8)))
    t
  "Do what DECODE-ITEM does, for BYTE-BUFFER."
  (let ((compression (compression-of call))
        (compressed (byte-buffer-compressed byte-buffer)))
    (when compression (setf (compression-received compression) compressed))
    (if compressed
        (decode-compressed call byte-buffer (compression-incoming compression) decode times)
        (decode-taken call (byte-buffer-taken byte-buffer) (byte-buffer-end byte-buffer) decode))))

(defun decode-compressed (call byte-buffer encoding decode times)
  "Do what DECODE-ITEM does, for BYTE-BUFFER, which is compressed by ENCODING."
  (declare (type function decode))
  (let* ((octets (byte-buffer-taken byte-buffer))
         (came (byte-buffer-end byte-buffer))
         (limit (receive-limit call))
         (budget (link-budget (the link (wire-call-link call))))
         (free (if budget (min limit (* times came)) limit))
         (size (inflated-size encoding octets 0 came)))
    (flet ((inflate (most) (decompress-octets encoding octets came most))
           (finish (outcome result length)
             (give-octets-back octets)
             (if (eq :ok outcome)
                 (decode-taken call result length decode)
                 (end-undecompressed call outcome limit))))
      (multiple-value-bind (outcome result length)
          (if (and (integerp size) (< free size)) (values :too-long nil 0) (inflate free))
        (if (and (eq :too-long outcome) budget)
            (call-on-budget call budget came
                            (lambda () (multiple-value-call #'finish (inflate limit))))
            (finish outcome result length))))))

(defun end-undecompressed (call outcome limit)
  "End CALL with an RPC-ERROR for OUTCOME, that of the decompression of CALL's message, and signal
this error."
  (multiple-value-bind (status text) (failed-inflation call outcome limit)
    (end-undecodable call (make-rpc-error status :message text :call call
                                          :peer (call-peer call)
                                          :ended-by :local))))

(defun call-on-budget (call budget came function)
  "Call FUNCTION, which decompresses and decodes a message of CALL, within BUDGET, the budget of
CALL's link. CAME octets of the message were received. The octets are charged to CALL's link
meanwhile, because they may wait for long."
  (declare (type function budget))
  (with-undoing ((charge-link (the link (wire-call-link call)) came)
                 (discharge call came))
    (funcall budget call came function)))

(defun unparsable-condition (call error start)
  "Return the RPC-ERROR for octets of CALL, beginning at START, that are not a message; ERROR is the
reason."
  (let ((position (protobuf:protobuf-error-position error)))
    (make-rpc-error :internal
                    :message (format nil "message cannot be parsed~@[ at octet ~D~]: ~A"
                                     (and position (- position start))
                                     (protobuf:protobuf-error-text error))
                    :call call :peer (call-peer call) :ended-by :local :cause error)))

(define-hot (take-single :inline t) ((call wire-call) (octets octets) (start index) (end index)
                                     &optional (keep boolean nil) (decode (or null function) nil))
    (values t boolean fixnum)
  "Handle the octets, which are the only message of CALL. If KEEP is true, or the message is long or
may be compressed, return it as a byte buffer, for DECODE-ITEM; the second value is true if the
decompressed message may be long. Otherwise return the values of DECODE or, if DECODE is nil, of the
function for messages of gRPC; the third value is the memory of the messages that are nested in the
message. Return nil if CALL was ended because its link holds too much."
  (let ((size (- end start)))
    (cond ((not (or keep (to-keep-p call size)))
           (multiple-value-bind (message kept inside)
               (if decode
                   (funcall decode call octets start end nil)
                   (decode-message call octets start end nil))
             (declare (ignore kept))
             (values message nil (the fixnum inside))))
          ((hold call size)
           (multiple-value-bind (byte-buffer long) (keep-octets call octets start end)
             (values byte-buffer long 0)))
          (t (values nil nil 0)))))

(define-hot deliver-streamed ((call wire-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of calls that receive more than one message. It queues the octets, which
the receiving thread decodes."
  (let ((size (- end start)))
    (cond ((not (to-keep-p call size)) (batch-messages call octets start end t))
          (t (queue-incoming call (keep-octets call octets start end) size)
             (schedule-callbacks call)))
    (incf (wire-inbound-arrived (the wire-inbound (call-wire-inbound call))))
    nil))

(define-hot half-close-streamed ((call wire-call)) null
  "The operation HALF-CLOSE of calls that receive more than one message."
  (seal-batch call)
  (setf (wire-call-half-closed call) t)
  (notify call)
  (schedule-callbacks call)
  nil)
