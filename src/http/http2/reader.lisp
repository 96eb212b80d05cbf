;;;; From octets to sink calls: the preface (RFC 9113 section 3.4), frames (4.1, 6) and header
;;;; blocks (4.3).
;;;;
;;;; Frames are parsed in place and consumed only when complete; the caller presents the rest again.
;;;; A header block in one HEADERS frame is decoded in place; a block with CONTINUATIONs is
;;;; collected first, and until it is complete any other frame is a connection error (6.10). A block
;;;; is always decoded, even if its stream is refused, because it changes the HPACK table.
;;;;
;;;; Errors are values, not conditions: FAIL-STREAM and FAIL-CONNECTION return, and code that may
;;;; have called them checks the state again. Only HPACK signals a condition, which RECEIVE-OCTETS
;;;; handles. The stream for which a sink function runs is CONNECTION-CURRENT, so that its object is
;;;; not used again for another stream meanwhile.
;;;;
;;;; The octets of one read may contain thousands of frames. RECEIVE-OCTETS returns after a given
;;;; number of frames, so that its owner can check the time and the output in between. Short DATA
;;;; frames that follow each other on a stream are treated as one (JOIN-DATA), and count as one.

(in-package #:clgrpc.http2)

(defconstant +flag-self-dependent+ #x100
  "An additional flag, which means that HEADERS made its stream depend on itself.")

(deftype flags () "The flags of a frame, and +FLAG-SELF-DEPENDENT+." '(unsigned-byte 9))

(define-hot (settle-stream :inline t) ((connection connection) (stream stream)) null
  "Finish STREAM if its last frame was received, and make it reusable if its owner allows that. Call
this after each call of a function of the sink for STREAM."
  (setf (connection-current connection) nil)
  (cond ((stream-flag-p stream +finished+) (recycle-stream stream))
        ((<= +closed+ (stream-state stream)) (finish-stream stream)))
  nil)

(defmacro deliver ((function connection stream) &rest arguments)
  "Call the sink's FUNCTION with STREAM and ARGUMENTS."
  `(progn
     (setf (connection-current ,connection) ,stream)
     (funcall (,(intern (format nil "SINK-~A" function) '#:clgrpc.http2)
               (connection-sink ,connection))
              ,stream ,@arguments)
     (settle-stream ,connection ,stream)))

(define-hot reject-frame ((connection connection) (stream (or null stream)) (id stream-id)
                          (step state-step))
    null
  "Perform STEP, whose action is not ACCEPT, for a frame on STREAM or, if STREAM is nil, on ID."
  (let ((code (step-code step)))
    (case (step-action step)
      (#.+stream-error+
       (if stream
           (fail-stream stream code "a frame on a stream that the peer has ended")
           (reset-absent connection id code "a frame on a closed stream")))
      (#.+connection-error+
       (fail-connection connection code
                        (if (= code +stream-closed+)
                            "a frame on a closed stream"
                            "a frame on an idle stream"))))
    nil))

;;; DATA (6.1)

(define-hot (charge-frame :inline t) ((connection connection) (length (unsigned-byte 24))) boolean
  "Charge a DATA frame of LENGTH to the connection's window. Return false if the frame has ended the
connection."
  (let ((left (- (connection-receive-window connection) length)))
    (cond ((minusp left)
           (fail-connection connection +flow-control-error+ "DATA over the connection window")
           nil)
          (t
           (setf (connection-receive-window connection) left)
           t))))

(define-hot (receive-stream-data :inline t) ((connection connection) (stream stream) (octets octets)
                                 (start index) (end index) (length (unsigned-byte 24))
                                 (end-stream-p boolean))
    null
  "Handle DATA whose content is from START to END and whose LENGTH octets were charged to the
connection."
  (let* ((step (find-step (stream-state stream)
                          (if end-stream-p +receive-data-end+ +receive-data+)))
         (count (- end start))
         (window (- (stream-receive-window stream) length))
         (content-left (stream-content-left stream)))
    (declare (type (unsigned-byte 31) count))
    (flet ((refuse-data (code text)
             (return-to-connection connection length)
             (fail-stream stream code text)
             (return-from receive-stream-data nil)))
      (cond ((/= +accept+ (step-action step))
             (return-to-connection connection length)
             (return-from receive-stream-data
               (reject-frame connection stream (stream-id stream) step)))
            ((minusp window)
             (refuse-data +flow-control-error+ "DATA over the stream's window"))
            ((not (stream-flag-p stream +received-headers+))
             (refuse-data +protocol-error+ "DATA before the response"))
            ((/= +no-content-length+ content-left)
             (let ((left (- content-left count)))
               (when (or (minusp left) (and end-stream-p (plusp left)))
                 (refuse-data +protocol-error+ "content is not as long as content-length"))
               (setf (stream-content-left stream) left)))))
    (setf (stream-receive-window stream) window
          (stream-unconsumed stream) (+ (stream-unconsumed stream) count)
          (stream-state stream) (step-next step))
    (unless (= count length)
      (return-to-connection connection (- length count))
      (return-to-stream stream (- length count)))
    (if (or (plusp count) end-stream-p)
        (deliver (on-data connection stream) octets start end end-stream-p)
        (charge-idle-frame connection))
    nil))

(define-hot receive-data ((connection connection) (octets octets) (start index) (end index)
                          (flags flags) (id stream-id) (stream (or null stream)))
    null
  "Handle DATA on the stream ID. STREAM is that stream, or nil if it does not exist."
  (let ((length (- end start)))
    (when (logtest flags +flag-padded+)
      (let ((padding (if (< start end) (aref octets start) 0)))
        ;; the test also rejects a frame that lacks the octet for the length of the padding
        (when (<= length padding)
          (return-from receive-data
            (fail-connection connection +protocol-error+ "DATA with more padding than payload")))
        (incf start)
        (decf end padding)))
    (when (charge-frame connection length)
      (if stream
          (receive-stream-data connection stream octets start end length
                               (logtest flags +flag-end-stream+))
          (let ((state (absent-state connection id)))
            (return-to-connection connection length)
            (when (= start end) (charge-update connection))
            (reject-frame connection nil id (find-step state +receive-data+)))))
    nil))

;;; Header blocks (4.3, 8.1)

(define-hot receive-request ((connection connection) (id stream-id) (flags flags)
                             (list hpack:field-list))
    null
  "Handle LIST, the header block with which the client opens a stream."
  (note-highest-id connection id)
  (let ((end-stream-p (logtest flags +flag-end-stream+))
        (content-length (check-request list)))
    (cond ((ignored-id-p connection id))
          ((logtest flags +flag-self-dependent+)
           (reset-absent connection id +protocol-error+ "a stream that depends on itself"))
          ((<= (options-max-concurrent-streams (connection-options connection))
               (connection-stream-count connection))
           (reset-absent connection id +refused-stream+ "too many streams at once"))
          ((hpack:field-list-overflow-p list)
           (reset-absent connection id +enhance-your-calm+ "header list too large"))
          ((or (= content-length +malformed-message+)
               (and end-stream-p (plusp content-length)))
           (reset-absent connection id +protocol-error+ "malformed request"))
          (t
           (let ((stream (take-stream connection id)))
             (set-stream-flag stream +received-headers+)
             (setf (stream-state stream) (if end-stream-p +half-closed-remote+ +open+)
                   (stream-content-left stream) content-length)
             (deliver (on-headers connection stream) list end-stream-p))))
    nil))

(define-hot fail-message ((stream stream) (text simple-string)) null
  (fail-stream stream +protocol-error+ text))

(define-hot receive-response ((connection connection) (stream stream) (state state)
                              (end-stream-p boolean) (list hpack:field-list))
    null
  "Handle a response, interim or final; STATE is the state to enter."
  (let* ((content-length (check-response list))
         (status (if (= content-length +malformed-message+) 0 (response-status list))))
    (cond ((zerop status)
           (fail-message stream "malformed response"))
          ((< status 200)
           (cond (end-stream-p
                  (fail-message stream "an interim response that ends the stream"))
                 ((stream-flag-p stream +had-interim+)
                  (charge-idle-frame connection))
                 (t (set-stream-flag stream +had-interim+))))
          (t
           (unless (or (= status 204) (= status 304))
             (when (and end-stream-p (plusp content-length))
               (return-from receive-response
                 (fail-message stream "a response without the content it promises")))
             (setf (stream-content-left stream) content-length))
           (set-stream-flag stream +received-headers+)
           (setf (stream-state stream) state)
           (deliver (on-headers connection stream) list end-stream-p)))
    nil))

(define-hot receive-trailers ((connection connection) (stream stream) (state state)
                              (end-stream-p boolean) (list hpack:field-list))
    null
  (cond ((not end-stream-p)
         (fail-message stream "second HEADERS that do not end the stream"))
        ((= +malformed-message+ (check-trailers list))
         (fail-message stream "malformed trailers"))
        ((plusp (stream-content-left stream))
         (fail-message stream "content is not as long as content-length says"))
        (t
         (setf (stream-state stream) state)
         (deliver (on-trailers connection stream) list)))
  nil)

(define-hot receive-stream-block ((connection connection) (stream stream) (flags flags)
                                  (list hpack:field-list))
    null
  "Handle a header block on STREAM, which exists."
  (let* ((end-stream-p (logtest flags +flag-end-stream+))
         (step (find-step (stream-state stream)
                          (if end-stream-p +receive-headers-end+ +receive-headers+))))
    (cond ((/= +accept+ (step-action step))
           (reject-frame connection stream (stream-id stream) step))
          ((= +idle+ (stream-state stream))
           (fail-connection connection +protocol-error+ "HEADERS on an idle stream"))
          ((logtest flags +flag-self-dependent+)
           (fail-stream stream +protocol-error+ "a stream that depends on itself"))
          ((hpack:field-list-overflow-p list)
           (fail-stream stream +enhance-your-calm+ "header list too large"))
          ((stream-flag-p stream +received-headers+)
           (receive-trailers connection stream (step-next step) end-stream-p list))
          (t
           (receive-response connection stream (step-next step) end-stream-p list)))
    nil))

(define-hot receive-absent-block ((connection connection) (id stream-id)) null
  "Handle a header block on a stream that does not exist and may not be opened."
  (let ((state (absent-state connection id)))
    (if (or (= state +idle+) (skipped-id-p connection id))
        (fail-connection connection +protocol-error+ "HEADERS on a stream that cannot be opened")
        (progn
          (charge-update connection)
          (reject-frame connection nil id (find-step state +receive-headers+))))))

(define-hot receive-block ((connection connection) (octets octets) (start index) (end index)
                           (flags flags) (id stream-id))
    null
  "Handle a complete header block for the stream ID; FLAGS are the flags of the block's HEADERS
frame."
  (let* ((pool (connection-pool connection))
         (list (or (pool-field-list pool) (hpack:make-field-list)))
         (stream (find-stream connection id)))
    (setf (pool-field-list pool) nil)   ; a sink function may run another connection of the pool
    (hpack:decode-block (connection-decoder connection) octets start end list)
    (cond (stream
           (receive-stream-block connection stream flags list))
          ((and (connection-server-p connection) (oddp id)
                (> id (connection-highest-id connection)))
           (receive-request connection id flags list))
          (t
           (receive-absent-block connection id)))
    (setf (pool-field-list pool) list)
    nil))

;;; HEADERS and CONTINUATION (6.2, 6.10)

(define-hot receive-headers ((connection connection) (octets octets) (start index) (end index)
                             (flags flags) (id stream-id))
    null
  (let* ((padded-p (logtest flags +flag-padded+))
         (priority-p (logtest flags +flag-priority+))
         (from (+ start (if padded-p 1 0) (if priority-p +priority-octets+ 0))))
    (declare (type index from))
    (when (< end from)
      (return-from receive-headers
        (fail-connection connection +frame-size-error+ "HEADERS too short for its flags")))
    (when priority-p
      (when (= id (priority-dependency octets (if padded-p (1+ start) start)))
        (setf flags (logior flags +flag-self-dependent+))))
    (when padded-p
      (when (< (- end from) (aref octets start))
        (return-from receive-headers
          (fail-connection connection +protocol-error+ "HEADERS with more padding than payload")))
      (decf end (aref octets start)))
    (if (logtest flags +flag-end-headers+)
        (receive-block connection octets from end flags id)
        (begin-collecting connection octets from end flags id))))

(define-hot begin-collecting ((connection connection) (octets octets) (start index) (end index)
                              (flags flags) (id stream-id))
    null
  (setf (connection-phase connection) +in-header-block+
        (connection-partial-block connection)
        (make-partial-block id flags (make-buffer :size (* 2 (- end start)))
                            (connection-last-receive-ns connection))
        (counters-block-octets (connection-counters connection)) 0)
  (collect-block connection octets start end))

(define-hot collect-block ((connection connection) (octets octets) (start index) (end index)) null
  "Add a piece to the header block in progress. The header of the piece's frame is counted as well,
so that even many empty pieces reach the limit."
  (let ((counters (connection-counters connection)))
    (if (< (options-max-header-block-octets (connection-options connection))
           (incf (counters-block-octets counters)
                 (+ (- end start) +frame-header-octets+)))
        (fail-block connection)
        (append-octets (partial-block-buffer
                        (the partial-block (connection-partial-block connection)))
                       octets :start start :end end))))

(defun fail-block (connection)
  "End CONNECTION, because the header block in progress is too long to decode; its stream, if it
exists, ends with that reason."
  (let ((stream (find-stream connection
                             (partial-block-id (connection-partial-block connection)))))
    (when stream
      (setf (connection-error-text connection) "header block too large")
      (reset-finished-stream stream +reset+ +enhance-your-calm+ :local))
    (fail-connection connection +enhance-your-calm+ "header block too large")))

(define-hot receive-continuation ((connection connection) (octets octets) (start index) (end index)
                                  (flags flags) (id stream-id))
    null
  (cond ((/= +in-header-block+ (connection-phase connection))
         (fail-connection connection +protocol-error+ "CONTINUATION without HEADERS"))
        (t
         (collect-block connection octets start end)
         (when (and (logtest flags +flag-end-headers+)
                    (not (connection-closed-p connection)))
           (let* ((block (the partial-block (connection-partial-block connection)))
                  (buffer (partial-block-buffer block)))
             (setf (connection-phase connection) +running+
                   (connection-partial-block connection) nil
                   (counters-block-octets (connection-counters connection)) 0)
             (receive-block connection (buffer-octets buffer) (buffer-start buffer)
                            (buffer-end buffer) (partial-block-flags block) id)))))
  nil)

;;; The small frames

(define-hot receive-priority ((connection connection) (octets octets) (start index) (end index)
                              (id stream-id))
    null
  "Ignore a priority (5.3.2), but check its frame, which may be an error (6.3)."
  (let ((code (cond ((/= +priority-octets+ (- end start)) +frame-size-error+)
                    ((= id (priority-dependency octets start)) +protocol-error+)
                    (t +no-error+)))
        (stream (find-stream connection id)))
    (cond ((= code +no-error+) (charge-idle-frame connection))
          (stream (fail-stream stream code "bad PRIORITY"))
          ((= +idle+ (absent-state connection id)) ; an idle stream cannot be reset
           (fail-connection connection code "bad PRIORITY on an idle stream"))
          (t (reset-absent connection id code "bad PRIORITY")))
    nil))

(define-hot frame-step ((connection connection) (stream (or null stream)) (id stream-id)
                        (input input))
    state-step
  "Return the step for INPUT on STREAM or, if STREAM is nil, on the identifier ID. Without a stream
the step's action is never ACCEPT."
  (find-step (if stream (stream-state stream) (absent-state connection id)) input))

(define-hot receive-reset ((connection connection) (octets octets) (start index) (id stream-id))
    null
  (let* ((stream (find-stream connection id))
         (step (frame-step connection stream id +receive-reset+)))
    (cond ((not (and stream (= +accept+ (step-action step))))
           (charge-update connection)
           (reject-frame connection stream id step))
          (t
           (reset-finished-stream stream (step-next step) (rst-stream-error-code octets start)
                                  :peer)
           (charge-reset connection)))
    nil))

(define-hot receive-window-update ((connection connection) (octets octets) (start index)
                                   (id stream-id))
    null
  (let ((increment (window-update-increment octets start)))
    (charge-update connection)
    (cond ((connection-closed-p connection)) ; the frame exceeded a rate limit
          ((plusp id)
           (update-stream connection id increment))
          ((zerop increment)
           (fail-connection connection +protocol-error+ "WINDOW_UPDATE of 0"))
          (t
           (raise-connection-window connection increment)))
    nil))

(define-hot update-stream ((connection connection) (id stream-id) (increment (unsigned-byte 31)))
    null
  "Apply a WINDOW_UPDATE of INCREMENT to the stream ID."
  (let* ((stream (find-stream connection id))
         (step (frame-step connection stream id +receive-window-update+)))
    (cond ((not (and stream (= +accept+ (step-action step))))
           (reject-frame connection stream id step))
          ((zerop increment)
           (fail-stream stream +protocol-error+ "WINDOW_UPDATE of 0"))
          (t
           (raise-stream-window stream increment)))
    nil))

(define-hot receive-ping ((connection connection) (octets octets) (start index) (flags flags)) null
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; a payload of 64 bits may be a bignum
  (let ((payload (ping-payload octets start)))
    (cond ((logtest flags +flag-ack+)
           (charge-idle-frame connection)
           (unless (connection-closed-p connection)
             (funcall (sink-on-ping-ack (connection-sink connection)) connection payload)))
          (t
           (charge-ping connection)
           (unless (connection-closed-p connection)
             (note-control-frame connection))
           (unless (connection-closed-p connection)
             (emit-ping connection +flag-ack+ payload))))
    nil))

(defun receive-goaway (connection octets start end)
  "Handle the peer's GOAWAY: open no new streams, and end, as refused, our streams that the peer
will not process (6.8). A later GOAWAY may only lower the last stream identifier."
  (let* ((before (connection-goaway-received connection))
         (last-id (goaway-last-stream-id octets start))
         (last-id (if (= before +no-goaway+) last-id (min before last-id))))
    (charge-idle-frame connection)
    (unless (connection-closed-p connection)
      (setf (connection-goaway-received connection) last-id)
      (funcall (sink-on-goaway (connection-sink connection)) connection last-id
               (goaway-error-code octets start)
               (subseq-octets octets (+ start +goaway-octets+) end))
      (unless (connection-server-p connection)
        (map-streams (lambda (stream)
                       (reset-finished-stream stream +closed+ +refused-stream+ :goaway))
                     connection last-id)))))

(defun receive-settings-frame (connection octets start end flags)
  (charge-idle-frame connection)
  (cond ((connection-closed-p connection))
        ((not (logtest flags +flag-ack+))
         (receive-settings connection octets start end))
        ((< start end)
         (fail-connection connection +frame-size-error+ "SETTINGS with ACK and a payload"))
        (t
         (settings-acknowledged connection))))

;;; Frames

(define-hot (read-frame :inline t) ((connection connection) (octets octets) (start index)
                                    (end index) (type octet) (flags flags) (id stream-id))
    null
  "Handle a frame of TYPE, whose header is valid, with its payload from START to END."
  (case type
    (#.+frame-data+
     (receive-data connection octets start end flags id (find-stream connection id)))
    (#.+frame-headers+ (receive-headers connection octets start end flags id))
    (#.+frame-priority+ (receive-priority connection octets start end id))
    (#.+frame-rst-stream+ (receive-reset connection octets start id))
    (#.+frame-settings+ (receive-settings-frame connection octets start end flags) nil)
    (#.+frame-push-promise+
     (fail-connection connection +protocol-error+ "PUSH_PROMISE, which no peer may send here"))
    (#.+frame-ping+ (receive-ping connection octets start flags))
    (#.+frame-goaway+ (receive-goaway connection octets start end) nil)
    (#.+frame-window-update+ (receive-window-update connection octets start id))
    (#.+frame-continuation+ (receive-continuation connection octets start end flags id))
    (t (charge-idle-frame connection)))) ; unknown types are ignored (5.5)

(defun foreign-protocol (octets start end)
  "Return the protocol of a peer whose first octets are OCTETS from START to END, if it is a
well-known protocol, else nil."
  (flet ((begins-p (text)
           (let ((stop (+ start (length text))))
             (and (<= stop end)
                  (null (mismatch (ascii-octets text) octets :start2 start :end2 stop))))))
    (cond ((some #'begins-p '("HTTP/1." "GET " "POST " "HEAD " "PUT " "OPTIONS ")) "HTTP/1.1")
          ;; a TLS record: of the handshake, or an alert
          ((and (<= (+ 2 start) end) (<= 21 (aref octets start) 22) (= 3 (aref octets (1+ start))))
           "TLS"))))

(defun fail-beginning (connection octets start end otherwise)
  "End CONNECTION, whose peer's first octets, OCTETS from START to END, are not HTTP/2. The error's
text names the protocol of OCTETS; if the protocol is unknown, the text is OTHERWISE."
  (let ((foreign (foreign-protocol octets start end)))
    (fail-connection connection +protocol-error+
                     (if foreign
                         (format nil "the peer speaks ~A, not HTTP/2" foreign)
                         otherwise))))

(define-hot check-phase ((connection connection) (octets octets) (at index) (type octet)
                         (flags flags) (id stream-id))
    null
  "Fail if the frame whose header is at AT is not allowed in the phase of CONNECTION, in which it
awaits a particular frame."
  (case (connection-phase connection)
    (#.+awaiting-settings+
     (unless (and (= type +frame-settings+) (not (logtest flags +flag-ack+)))
       (fail-beginning connection octets at (+ at +frame-header-octets+)
                       "the first frame is not SETTINGS")))
    (#.+in-header-block+
     (unless (and (= type +frame-continuation+)
                  (= id (partial-block-id (the partial-block
                                               (connection-partial-block connection)))))
       (fail-connection connection +protocol-error+ "a frame inside a header block"))))
  nil)

(defun fail-frame (connection code type length id)
  (fail-connection connection code
                   (format nil "~A of ~D octets on stream ~D" (frame-name type) length id)))

(defconstant +joined-octets+ 256
  "The maximum length in octets of the payload of a DATA frame that joins another frame. Moving a
longer payload takes more time than a call of ON-DATA.")

(define-hot (data-room :inline t) ((connection connection) (stream (or null stream))
                                   (largest index))
    index
  "Return the maximum number of octets of DATA on STREAM that are delivered together. It is LARGEST,
or less if the windows or the content-length allow less, so that a frame that exceeds these is
refused alone, without the frames before it. It is 0 if STREAM is nil."
  (if stream
      (let ((left (stream-content-left stream)))
        (max 0 (min largest (connection-receive-window connection) (stream-receive-window stream)
                    (if (= left +no-content-length+) largest left))))
      0))

(define-hot join-data ((octets octets) (start index) (end index) (limit index) (id stream-id)
                       (most index))
    (values index index)
  "A frame of the stream ID has the payload from START to END. Move the payloads of short DATA
frames of the same stream that follow it to the end of that payload, so that one call of ON-DATA
delivers all these payloads, but at most MOST octets. Only frames that end before LIMIT are moved.
Return two values: the end of the payloads, and the end of the frames."
  (let ((after end))
    (declare (type index after))
    (loop
      (when (< (- limit after) +frame-header-octets+) (return (values end after)))
      (multiple-value-bind (length type flags other) (read-frame-header octets after)
        (let* ((payload (+ after +frame-header-octets+))
               (stop (+ payload length)))
          (declare (type index payload stop))
          (unless (and (= type +frame-data+) (zerop flags) (= other id)
                       (<= 1 length +joined-octets+)
                       (<= (+ (- end start) length) most)
                       (<= stop limit))
            (return (values end after)))
          (setf end (copy-octets octets payload stop octets end)
                after stop))))))

(define-hot read-frames ((connection connection) (octets octets) (start index) (end index)
                         (frames fixnum))
    (values index boolean)
  (let ((at start)
        (left frames)
        (largest (options-max-frame-octets (connection-options connection))))
    (declare (type index at) (type fixnum left))
    (loop
      (when (< (- end at) +frame-header-octets+)
        (return (values at nil)))
      (when (minusp (decf left))
        (return (values at t)))
      (multiple-value-bind (length type flags id) (read-frame-header octets at)
        (let* ((payload (+ at +frame-header-octets+))
               (after (+ payload length))
               (code (if (< largest length)
                         +frame-size-error+
                         (frame-header-error type length id))))
          (declare (type index payload after))
          (unless (= +running+ (connection-phase connection))
            (check-phase connection octets at type flags id))
          (unless (zerop code)
            (fail-frame connection code type length id))
          (when (and (< end after) (not (connection-closed-p connection)))
            (return (values at nil)))
          (cond ((connection-closed-p connection))
                ;; no frame joins the last of FRAMES: a tracer of frames gets each frame alone
                ((and (= type +frame-data+) (zerop flags) (plusp length) (plusp left))
                 (let ((stream (find-stream connection id)))
                   (multiple-value-bind (joined next)
                       (join-data octets payload after end id
                                  (data-room connection stream largest))
                     (receive-data connection octets payload joined flags id stream)
                     (setf after next))))
                (t (read-frame connection octets payload after type flags id)))
          (when (connection-closed-p connection)
            (return (values end nil)))
          (setf at after))))))

(sb-ext:defglobal **preface**
    (let ((line-end (coerce '(#\Return #\Newline) 'string)))
      (ascii-octets (concatenate 'string "PRI * HTTP/2.0" line-end line-end "SM"
                                 line-end line-end))))

(defun read-preface (connection octets start end)
  "Check the client's preface, which begins at START. Return the position after the preface, or
START if the preface is incomplete."
  (let* ((length (length **preface**))
         (count (min length (- end start))))
    (cond ((mismatch **preface** octets :end1 count :start2 start :end2 (+ start count))
           (fail-beginning connection octets start end "not an HTTP/2 client preface")
           end)
          ((< count length) start)
          (t
           (setf (connection-phase connection) +awaiting-settings+)
           (+ start length)))))

(define-hot receive-octets ((connection connection) (octets octets) (start index) (end index)
                            (now time-ns) &optional (frames fixnum most-positive-fixnum))
    (values index boolean)
  "Process the peer's octets from START to END, received at NOW (nanoseconds of any steady clock),
but at most FRAMES frames; frames that JOIN-DATA joins count as one. Return two values. The first is
the position of the first octet not consumed, at which a frame begins; call this function again with
that frame and the octets after it. The second is true if that frame may be complete, because FRAMES
frames were processed; otherwise more octets must be received first. Octets that are consumed may be
overwritten (JOIN-DATA). RECEIVE-OCTETS calls functions of the sink; such a function may use OCTETS
only during its call. If the peer broke the protocol, GOAWAY is in the output and ON-CLOSE was
called; all further octets are consumed and ignored."
  (setf (connection-last-receive-ns connection) now)
  (handler-case
      (let ((at start))
        (declare (type index at))
        (when (= +awaiting-preface+ (connection-phase connection))
          (setf at (read-preface connection octets start end)))
        (cond ((connection-closed-p connection) (values end nil))
              ((= +awaiting-preface+ (connection-phase connection)) (values at nil))
              (t (read-frames connection octets at end frames))))
    (hpack:hpack-error (condition)
      (fail-connection connection +compression-error+ (hpack:hpack-error-text condition))
      (values end nil))))
