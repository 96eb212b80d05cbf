;;;; HEADERS and DATA straight into the output (RFC 9113 sections 6.1, 6.2, 6.10). The fast path of
;;;; a unary call: BEGIN-HEADERS, the caller's calls of HPACK, END-HEADERS; then RESERVE-DATA,
;;;; BEGIN-DATA, the caller's octets, END-DATA. The writer copies nothing and allocates nothing.
;;;;
;;;; Between BEGIN and END of a pair no other octets may be appended. A header block is contiguous:
;;;; it is encoded in one piece after 9 octets that are kept free, and it is split to insert the
;;;; headers of CONTINUATIONs only if it is longer than the peer's largest frame. Neither DATA nor
;;;; trailers overtake queued DATA: see data-queue.lisp.

(in-package #:clgrpc.http2)

(defconstant +output-cap+ 65536
  "The number of octets of output above which DATA is queued instead of appended. The streams with
queued DATA then write frames in turn.")

(define-hot connection-writable-p ((connection connection)) boolean
  "True if the output is below its cap, so that DATA that is appended now would be sent with the
next flush."
  (and (not (connection-closed-p connection))
       (< (output-fill connection) +output-cap+)))

(define-hot (enter-state :inline t) ((stream stream) (state state)) null
  "Set the STATE of STREAM after a frame of ours, and finish STREAM if it is the last state."
  (setf (stream-state stream) state)
  (when (= state +closed+) (finish-stream stream))
  nil)

;;; HEADERS

(define-hot (begin-headers :inline t) ((stream stream)) (values hpack:encoder buffer)
  "Begin the header block of a request, a response or trailers on STREAM. Return the encoder and the
buffer for the encoding functions of clgrpc.hpack. Call one of these for each field; then call
END-HEADERS. Until then call no other function of the connection. Signal MISUSE if our side of the
stream has ended or the stream has queued octets: see STREAM-SENDABLE-P and SEND-TRAILERS-LATER."
  (let ((connection (stream-connection stream))
        (state (stream-state stream)))
    (unless (or (sending-state-p state) (= state +idle+))
      (misuse "No headers can be sent on ~S." stream))
    (unless (zerop (stream-queued-octets stream))
      (misuse "Headers would overtake the octets queued on ~S." stream))
    (unless (= -1 (connection-open-mark connection))
      (misuse "Headers of another stream of ~S were begun before and have not ended." connection))
    (let ((buffer (output-buffer connection))
          (encoder (connection-encoder connection)))
      (ensure-buffer-room buffer 128)
      (setf (connection-open-mark connection) (buffer-fill buffer))
      (incf (buffer-end buffer) +frame-header-octets+)
      (hpack:begin-block encoder buffer)
      (values encoder buffer))))

(define-hot end-headers ((stream stream) (end-stream-p boolean)) null
  "End the header block that BEGIN-HEADERS began on STREAM: write its frame header, and
CONTINUATIONs if the block needs them. If END-STREAM-P is true, our side of the stream ends. Second
headers are trailers and must end the stream."
  (let* ((connection (stream-connection stream))
         (buffer (the buffer (connection-output connection)))
         (mark (connection-open-mark connection))
         (at (+ (buffer-start buffer) mark))
         (length (- (buffer-end buffer) at +frame-header-octets+))
         (step (find-step (stream-state stream)
                          (if end-stream-p +send-headers-end+ +send-headers+))))
    (declare (type index mark at length))
    (unless (or end-stream-p (not (stream-flag-p stream +sent-headers+)))
      (misuse "Second headers on ~S must end the stream." stream))
    (setf (connection-open-mark connection) -1)
    (if (<= length (connection-peer-frame-octets connection))
        (write-frame-header (buffer-octets buffer) at length +frame-headers+
                            (if end-stream-p
                                (logior +flag-end-headers+ +flag-end-stream+)
                                +flag-end-headers+)
                            (stream-id stream))
        (split-block connection buffer mark (stream-id stream) end-stream-p))
    (set-stream-flag stream +sent-headers+)
    (when (eq stream (connection-opening connection))
      (setf (connection-opening connection) nil))
    (enter-state stream (step-next step))))

(define-hot split-block ((connection connection) (buffer buffer) (mark index) (id stream-id)
                         (end-stream-p boolean))
    null
  "Split the block into HEADERS and CONTINUATIONs. The block begins MARK octets after the start of
BUFFER, with room for one frame header before it. Its pieces are moved to their places, the last
piece first."
  (let* ((limit (connection-peer-frame-octets connection))
         (length (- (buffer-fill buffer) mark +frame-header-octets+))
         (more (1- (ceiling length limit))) ; how many CONTINUATIONs
         (octets (ensure-buffer-room buffer (* more +frame-header-octets+)))
         (at (+ (buffer-start buffer) mark)))
    (declare (type index length more at))
    (incf (buffer-end buffer) (* more +frame-header-octets+))
    (loop for piece from more downto 0
          for offset of-type index = (* piece limit)
          for count of-type index = (min limit (- length offset))
          for from of-type index = (+ at +frame-header-octets+ offset)
          for to of-type index = (+ from (* piece +frame-header-octets+))
          for flags of-type octet = (if (= piece more) +flag-end-headers+ 0)
          do (replace octets octets :start1 to :start2 from :end2 (+ from count))
             (write-frame-header octets (- to +frame-header-octets+) count
                                 (if (zerop piece) +frame-headers+ +frame-continuation+)
                                 (if (and end-stream-p (zerop piece))
                                     (logior flags +flag-end-stream+)
                                     flags)
                                 id))
    nil))

(defun send-continue (stream)
  "Send the interim response 100 (RFC 9113 section 8.1) on STREAM, a stream of a server whose answer
has not begun."
  (multiple-value-bind (encoder buffer) (begin-headers stream)
    (hpack:encode-literal encoder buffer (load-time-value (ascii-octets ":status") t)
                          (load-time-value (ascii-octets "100") t) :plain))
  (end-headers stream nil)
  (clear-stream-flag stream +sent-headers+))

;;; DATA

(define-hot (largest-data :inline t) ((connection connection)) index
  "Return the maximum length in octets of the payload of DATA that we send, which is the lower of
the peer's limit and our own."
  (min (connection-peer-frame-octets connection)
       (options-max-frame-octets (connection-options connection))))

(define-hot (reserve-data :inline t) ((stream stream) (count index)) boolean
  "True if a DATA frame of COUNT octets on STREAM can be appended to the output at once. This
requires that the stream's headers have been sent, both windows and one frame have room, no stream
has queued DATA, and the output is below its cap. If the value is true, call BEGIN-DATA; otherwise
call SEND-DATA."
  (let ((connection (stream-connection stream)))
    (and (sending-state-p (stream-state stream))
         (stream-flag-p stream +sent-headers+)
         (zerop (stream-queued-octets stream))
         (<= count (stream-send-window stream))
         (<= count (connection-send-window connection))
         (<= count (largest-data connection))
         (null (connection-ring-head connection))
         (< (output-fill connection) +output-cap+))))

(define-hot (joins-last-p :inline t) ((stream stream) (buffer buffer) (count index)) boolean
  "True if the output, BUFFER, ends with a DATA frame of STREAM that may get COUNT more octets."
  (let ((connection (stream-connection stream)))
    (and (eq stream (connection-data-stream connection))
         (= (connection-data-end connection) (buffer-fill buffer))
         (<= (- (+ (connection-data-end connection) count)
                (connection-data-mark connection) +frame-header-octets+)
             (largest-data connection)))))

(define-hot (begin-data :inline t) ((stream stream) (count index)) (values octets index)
  "Call this after RESERVE-DATA has returned true for COUNT. Return two values: octets, and the
position in them at which to write exactly COUNT octets. Then call END-DATA; until then call no
other function of the connection."
  (let* ((buffer (output-buffer (stream-connection stream)))
         (octets (ensure-buffer-room buffer (+ count +frame-header-octets+))))
    (values octets (if (joins-last-p stream buffer count)
                       (buffer-end buffer)
                       (+ (buffer-end buffer) +frame-header-octets+)))))

(define-hot end-data ((stream stream) (count index) (end-stream-p boolean)) null
  "End the COUNT octets of DATA that BEGIN-DATA began on STREAM; if END-STREAM-P is true, they are
the last octets. The octets become a separate frame, or join the frame before them, because messages
that share one frame cost the peer less than a frame for each message."
  (let* ((connection (stream-connection stream))
         (buffer (the buffer (connection-output connection)))
         (joins (joins-last-p stream buffer count))
         (mark (if joins (connection-data-mark connection) (buffer-fill buffer)))
         (end (+ count (buffer-fill buffer) (if joins 0 +frame-header-octets+))))
    (declare (type index mark end))
    (setf (connection-data-end connection) end)
    (decf (stream-send-window stream) count)
    (decf (connection-send-window connection) count)
    (when (plusp count) (note-data connection))
    (cond ((and joins (not end-stream-p)) ; the state remains
           (setf (frame-header-length (buffer-octets buffer) (+ (buffer-start buffer) mark))
                 (- end mark +frame-header-octets+)
                 (buffer-end buffer) (+ (buffer-start buffer) end))
           nil)
          (t
           (write-frame-header (buffer-octets buffer) (+ (buffer-start buffer) mark)
                               (- end mark +frame-header-octets+) +frame-data+
                               (if end-stream-p +flag-end-stream+ 0) (stream-id stream))
           (setf (buffer-end buffer) (+ (buffer-start buffer) end)
                 (connection-data-stream connection) (if end-stream-p nil stream)
                 (connection-data-mark connection) mark)
           (enter-state stream (step-next (find-step (stream-state stream)
                                                     (if end-stream-p
                                                         +send-data-end+
                                                         +send-data+))))))))
