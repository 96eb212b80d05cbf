;;;; A call: it is made when it is due, gets a stream, sends its requests, reads what comes, and
;;;; ends exactly once, by END-FLIGHT. Requests are framed beforehand and responses only counted, so
;;;; that a call costs what HTTP/2 costs.
;;;;
;;;; A flight that has ended may still be in a queue or a chain; it is used again only when these
;;;; have let go of it.

(in-package #:clgrpc.load)

(defconstant +code-cancelled+ 1)
(defconstant +code-unknown+ 2)
(defconstant +code-deadline-exceeded+ 4)
(defconstant +code-resource-exhausted+ 8)
(defconstant +code-unimplemented+ 12)
(defconstant +code-internal+ 13)
(defconstant +code-unavailable+ 14)

;;; Making, and the list by age

(define-hot take-flight ((lane lane)) flight
  (let ((flight (lane-free lane)))
    (cond (flight
           (setf (lane-free lane) (flight-next flight)
                 (flight-next flight) nil)
           flight)
          (t (%make-flight lane)))))

(define-hot give-flight-back ((lane lane) (flight flight)) null
  "Use FLIGHT, which has ended, again, unless a queue or chain still holds it."
  (unless (or (flight-queued flight) (flight-chained flight))
    (setf (flight-next flight) (lane-free lane)
          (lane-free lane) flight))
  nil)

(define-hot make-flight ((line line) (intended-ns nanoseconds)) flight
  "A call on LINE that was to begin at INTENDED-NS."
  (let* ((lane (the lane (line-lane line)))
         (plan (lane-plan lane))
         (flight (take-flight lane))
         (youngest (lane-youngest lane))
         (behind (<= (lane-measure-ns lane) intended-ns))
         (counted (and behind (<= (lane-skip lane) (lane-counted lane)))))
    (setf (flight-line flight) line
          (flight-number flight) (logand most-positive-fixnum
                                         (+ (* (lane-made lane) (plan-lanes plan))
                                            (lane-number lane)))
          (flight-intended-ns flight) intended-ns
          (flight-made-ns flight) (lane-now lane)
          (flight-sent-ns flight) 0
          (flight-counted flight) counted
          (flight-waited flight) nil
          (flight-retried flight) nil
          (flight-frames flight) (payload-frames (plan-payload plan))
          (flight-ended flight) nil
          (flight-previous flight) youngest
          (lane-youngest lane) flight)
    (if youngest
        (setf (flight-next youngest) flight)
        (setf (lane-oldest lane) flight))
    (incf (lane-made lane))
    (when behind
      (incf (lane-counted lane))
      (decf (lane-left lane)))
    (incf (lane-flying lane))
    (incf (line-flying line))
    (when (and counted (not (lane-measuring lane)))
      (setf (lane-measuring lane) t)
      (begin-tally (lane-tally lane) (lane-measure-ns lane)))
    flight))

(defun flight-data (lane flight)
  "What templates may say of FLIGHT: LANE's CALL-DATA, until it is asked for again."
  (let ((data (lane-data lane)))
    (setf (call-data-number data) (flight-number flight)
          (call-data-worker data) (line-number (flight-line flight)))
    data))

(defun expand-frames (lane flight)
  "The frames of FLIGHT, for which the templates are expanded anew."
  (setf (flight-frames flight) (funcall (payload-maker (plan-payload (lane-plan lane)))
                                        (flight-data lane flight))))

(define-hot unlink-flight ((lane lane) (flight flight)) null
  (let ((next (flight-next flight)) (previous (flight-previous flight)))
    (if next
        (setf (flight-previous next) previous)
        (setf (lane-youngest lane) previous))
    (if previous
        (setf (flight-next previous) next)
        (setf (lane-oldest lane) next))
    (setf (flight-next flight) nil
          (flight-previous flight) nil)
    nil))

;;; The end

(define-hot note-stages ((tally tally) (flight flight) (now nanoseconds)) null
  "Note how long the stages of FLIGHT, which was sent and has ended at NOW, have taken."
  (record-value (if (flight-waited flight) (tally-connect tally) (tally-queue tally))
                (max 0 (- (flight-begun-ns flight) (flight-intended-ns flight))))
  (record-value (tally-send tally) (max 0 (- (flight-sent-ns flight) (flight-begun-ns flight))))
  (record-value (tally-wait tally) (max 0 (- now (flight-sent-ns flight)))))

(define-hot leave-stream ((flight flight)) null
  "FLIGHT has nothing to do with its stream, if it has one, any more."
  (let ((stream (flight-stream flight)))
    (when stream
      (setf (flight-stream flight) nil
            (http2:stream-user stream) nil)
      (decf (line-begun (the line (flight-line flight))))
      (when (http2:stream-open-p stream)
        (http2:reset-stream stream http2:+cancel+))
      (http2:release-stream stream))
    (when (flight-timer flight)
      (cancel-timer (lane-wheel (flight-lane flight)) (flight-timer flight)))
    nil))

(define-hot end-flight ((flight flight) (code (integer 0 16)) (text (or null string))) null
  "FLIGHT has ended now with the status CODE, and TEXT if that is not OK."
  (let* ((lane (the lane (flight-lane flight)))
         (line (the line (flight-line flight)))
         (connection (flight-connection flight))
         (tally (lane-tally lane))
         (now (lane-now lane)))
    (leave-stream flight)
    (unlink-flight lane flight)
    (decf (lane-flying lane))
    (decf (line-flying line))
    (when (and (flight-counted flight) (not (lane-dropping lane)))
      (note-end tally
                (or (and connection (connection-backend (the connection connection)))
                    (line-backend line)
                    (setf (line-backend line)
                          (find-backend tally (loop:target-text (line-target line)))))
                (flight-intended-ns flight) now code text)
      (incf (tally-messages-sent tally) (flight-next-frame flight))
      (incf (tally-messages-received tally) (flight-responses flight))
      (setf (lane-last-end-ns lane) now)
      (unless (zerop (flight-sent-ns flight)) (note-stages tally flight now)))
    (setf (flight-connection flight) nil
          (flight-ended flight) t)
    (give-flight-back lane flight)))

;;; Sending

(define-hot send-frame ((stream http2:stream) (frame octets) (end-stream-p boolean)) null
  (let ((count (length frame)))
    (cond ((http2:reserve-data stream count)
           (multiple-value-bind (octets at) (http2:begin-data stream count)
             (copy-octets frame 0 count octets at)
             (http2:end-data stream count end-stream-p)))
          (t (http2:send-data stream frame 0 count end-stream-p)))
    nil))

(defconstant +queued-enough+ 131072
  "A stream of requests is not sent on while so many octets of it wait.")

(defun flight-overdue-p (flight)
  "True if FLIGHT has sent or received for as long as it may."
  (let* ((lane (flight-lane flight))
         (limit (plan-call-duration-ns (lane-plan lane))))
    (and (plusp limit) (<= (+ (flight-begun-ns flight) limit) (lane-now lane)))))

(defun wake-flight (flight due-ns)
  "Have GO-ON called with FLIGHT at DUE-NS."
  (schedule-timer (lane-wheel (flight-lane flight))
                  (or (flight-timer flight)
                      (setf (flight-timer flight) (make-timer #'go-on flight)))
                  due-ns))

(defun go-on (flight)
  "The timer of FLIGHT rings: the next request is due, or the call has lasted long enough."
  (let ((lane (flight-lane flight)))
    (note-now lane)
    (when (flight-stream flight)
      (cond ((sends-stream-p (lane-plan lane)) (send-stream flight))
            ((flight-overdue-p flight)
             (end-flight flight +code-cancelled+ "cancelled after its duration"))))
    (after-event lane)))

(defun send-stream (flight)
  "Send the requests of FLIGHT that are due, as far as its peer takes them, and end our side behind
the last."
  (let* ((lane (flight-lane flight))
         (plan (lane-plan lane))
         (stream (flight-stream flight))
         (interval-ns (plan-interval-ns plan))
         (total (or (plan-messages plan)
                    (if (plusp (plan-call-duration-ns plan))
                        most-positive-fixnum
                        (length (flight-frames flight))))))
    (loop
      (let* ((sent (flight-next-frame flight))
             (frames (flight-frames flight))
             (over (or (<= total sent) (zerop (length frames)) (flight-overdue-p flight))))
        (cond ((not (http2:stream-sendable-p stream)) (return))
              (over (return (http2:send-data stream (make-octets 0) 0 0 t)))
              ((<= +queued-enough+ (http2:stream-queued-octets stream)) (return)))
        (when (and (plusp sent) (plan-fresh-messages plan)) (expand-frames lane flight))
        (send-frame stream (svref frames (mod sent (length frames))) (= total (1+ sent)))
        (setf (flight-next-frame flight) (1+ sent))
        (when (= total (1+ sent)) (return))
        (when (plusp interval-ns)
          (return (wake-flight flight (+ (lane-now lane) interval-ns))))))))

(defun resume-sending (stream)
  "The sink's ON-WRITABLE."
  (let ((flight (http2:stream-user stream)))
    (when (and flight
               (zerop (plan-interval-ns (lane-plan (flight-lane flight))))
               (http2:stream-sendable-p stream))
      (send-stream flight))))

(define-hot send-requests ((flight flight) (plan plan)) null
  "Send what FLIGHT, which has just got its stream, sends at first."
  (let ((frames (flight-frames flight)))
    (cond ((sends-stream-p plan) (send-stream flight))
          (t
           (send-frame (the http2:stream (flight-stream flight))
                       (svref frames (if (= 1 (length frames))
                                         0
                                         (mod (flight-number flight) (length frames))))
                       t)
           (setf (flight-next-frame flight) 1)
           (when (plusp (plan-call-duration-ns plan))
             (wake-flight flight (logand most-positive-fixnum
                                         (+ (flight-begun-ns flight)
                                            (plan-call-duration-ns plan)))))))
    nil))

(define-hot begin-flight ((connection connection) (flight flight)) boolean
  "Begin FLIGHT on CONNECTION; return false if no stream may be opened there now."
  (let* ((lane (the lane (flight-lane flight)))
         (plan (lane-plan lane))
         (maker (plan-metadata-maker plan))
         (stream (http2:open-stream (the http2:connection (connection-http2 connection)))))
    (when stream
      (setf (http2:stream-user stream) flight
            (flight-stream flight) stream
            (flight-connection flight) connection
            (flight-begun-ns flight) (max (lane-now lane) (flight-intended-ns flight))
            (flight-next-frame flight) 0
            (flight-prefix flight) 0
            (flight-left flight) 0
            (flight-responses flight) 0
            (flight-encoded flight) nil
            (connection-used connection) t)
      (incf (line-begun (the line (flight-line flight))))
      (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
        (hpack:encode-fields encoder buffer (plan-fields plan))
        (when maker
          (loop for field across (the simple-vector (funcall maker (flight-data lane flight)))
                do (hpack:encode-field encoder buffer field :plain)))
        (http2:end-headers stream nil))
      (unless (flight-chained flight)
        (setf (flight-chained flight) t
              (flight-later flight) (connection-unflushed connection)
              (connection-unflushed connection) flight))
      (send-requests flight plan)
      t)))

;;; What comes back

(defun problem-of-headers (list)
  "The code and the text of what is wrong with the headers LIST of a response, or nil."
  (let ((status (hpack:find-field list ":status"))
        (content-type (hpack:find-field list "content-type")))
    (cond ((hpack:find-field list "grpc-status") nil)
          ((string/= "200" (hpack:field-value-string status))
           (let ((code (hpack:field-value-string status)))
             (values (status:status-code
                      (wire:http-status-status (parse-integer code :junk-allowed t)))
                     (format nil "HTTP status ~A instead of a gRPC response" code))))
          ((not (and content-type (uiop:string-prefix-p "application/grpc"
                                                        (hpack:field-value-string content-type))))
           (values +code-unknown+ "the content-type is not application/grpc")))))

(declaim (ftype (function (hpack:field-list) (values (integer 0 16) string)) status-of-trailers))
(defun status-of-trailers (list)
  "The code and the message that the trailers LIST say."
  (let* ((field (hpack:find-field list "grpc-status"))
         (message (hpack:find-field list "grpc-message"))
         (code (and field (wire:status-number (hpack:field-value-string field)))))
    (cond ((null code) (values +code-unknown+ "the response has no valid grpc-status"))
          ((not (<= 0 code 16)) (values +code-unknown+ (format nil "grpc-status ~D" code)))
          (t (values code (if message
                              (wire:decode-status-message (hpack:field-value message))
                              ""))))))

(define-hot end-with-trailers ((flight flight) (list hpack:field-list)) null
  "The response of FLIGHT ends with LIST."
  (if (eq :ok (hpack:field-list-memo list))
      (end-with-ok flight)
      (multiple-value-bind (code text) (status-of-trailers list)
        (cond ((zerop code)
               (setf (hpack:field-list-memo list) :ok)
               (end-with-ok flight))
              (t (end-flight flight code text))))))

(define-hot end-with-ok ((flight flight)) null
  (let ((single (member (plan-kind (lane-plan (the lane (flight-lane flight))))
                        '(:unary :client-streaming))))
    (cond ((or (plusp (flight-left flight)) (plusp (flight-prefix flight)))
           (end-flight flight +code-internal+ "the response ends in the middle of a message"))
          ((and single (/= 1 (flight-responses flight)))
           (end-flight flight +code-unimplemented+
                       (format nil "OK with ~D responses instead of one"
                               (flight-responses flight))))
          (t (end-flight flight 0 nil)))))

(define-hot take-headers ((stream http2:stream) (list hpack:field-list) (ended boolean)) null
  "The sink's ON-HEADERS."
  (let ((flight (http2:stream-user stream)))
    (when flight
      (unless (member (hpack:field-list-memo list) '(:good :encoded :ok))
        (multiple-value-bind (code text) (problem-of-headers list)
          (when code
            (end-flight flight code text)
            (return-from take-headers nil)))
        (unless ended
          (setf (hpack:field-list-memo list)
                (if (hpack:find-field list "grpc-encoding") :encoded :good))))
      (when (eq :encoded (hpack:field-list-memo list)) (setf (flight-encoded flight) t))
      (when ended (end-with-trailers flight list)))
    nil))

(define-hot count-responses ((flight flight) (octets octets) (start index) (end index)) boolean
  "Count the responses in OCTETS from START to END; one may have begun before and go on behind.
Return false if one has a prefix that is none: it says that it is compressed though nothing said
how, or something else."
  (let ((at start) (prefix (flight-prefix flight)) (left (flight-left flight))
        (compressed (if (flight-encoded flight) 1 0)) (sound t))
    (declare (type index at) (type (unsigned-byte 32) left) (type (integer 0 5) prefix)
             (type bit compressed))
    (loop while (< at end)
          do (cond ((< prefix 5)
                    (setf left (logior (ldb (byte 32 0) (ash left 8)) (aref octets at)))
                    (when (zerop prefix) ; whether it is compressed
                      (when (< compressed left) (setf sound nil))
                      (setf left 0))
                    (incf prefix)
                    (incf at))
                   (t (let ((taken (min left (- end at))))
                        (incf at taken)
                        (decf left taken))))
             (when (and (= 5 prefix) (zerop left))
               (incf (flight-responses flight))
               (setf prefix 0)))
    (setf (flight-prefix flight) prefix
          (flight-left flight) left)
    sound))

(define-hot take-data ((stream http2:stream) (octets octets) (start index) (end index)
                       (ended boolean))
    null
  "The sink's ON-DATA."
  (let ((flight (http2:stream-user stream)))
    (http2:consume-data stream (- end start))
    (when flight
      (let ((flight flight))
        (declare (type flight flight))
        (cond ((not (count-responses flight octets start end))
               (end-flight flight +code-internal+
                           "a response is compressed though there is no grpc-encoding"))
              (ended (end-flight flight +code-internal+ "the response has no trailers"))
              ((eq :server-streaming (plan-kind (lane-plan (the lane (flight-lane flight)))))
               (let ((most (plan-messages (lane-plan (the lane (flight-lane flight))))))
                 (when (and most (<= most (flight-responses flight)))
                   (end-flight flight +code-cancelled+ "cancelled after its last message")))))))
    nil))

(define-hot take-trailers ((stream http2:stream) (list hpack:field-list)) null
  "The sink's ON-TRAILERS."
  (let ((flight (http2:stream-user stream)))
    (when flight (end-with-trailers flight list))
    nil))

(defun take-reset (stream error-code source)
  "The sink's ON-RESET. A call that the peer has not processed is made again, once (gRFC A6)."
  (let ((flight (http2:stream-user stream)))
    (when flight
      (let ((connection (flight-connection flight)) (line (flight-line flight)))
        (cond ((and (not (flight-retried flight))
                    (or (eq :goaway source)
                        (and (eq :peer source) (= error-code http2:+refused-stream+))))
               (setf (flight-retried flight) t)
               (leave-stream flight)
               (setf (flight-sent-ns flight) 0)
               (queue-flight line flight))
              ((eq :connection source)
               (end-flight flight +code-unavailable+
                           (or (connection-failure connection) "the connection was lost")))
              ((eq :goaway source)
               (end-flight flight +code-unavailable+ "the server is going away"))
              ((and (eq :local source) (= error-code http2:+enhance-your-calm+))
               (end-flight flight +code-resource-exhausted+
                           "the response's header list is too large"))
              (t (end-flight flight (status:status-code (wire:error-code-status error-code))
                             (format nil "the stream was reset~:[ for a fault of the peer's~;~]: ~A"
                                     (eq :peer source)
                                     (http2:error-code-name error-code)))))))))

;;; Waiting for a stream

(define-hot queue-flight ((line line) (flight flight)) null
  "FLIGHT waits until LINE has a stream for it."
  (cond ((flight-chained flight)        ; refused before it was even sent
         (end-flight flight +code-unavailable+ "the server did not process the request"))
        (t
         (setf (flight-queued flight) t
               (flight-later flight) nil)
         (if (line-queue-tail line)
             (setf (flight-later (the flight (line-queue-tail line))) flight)
             (setf (line-queue-head line) flight))
         (setf (line-queue-tail line) flight)))
  nil)

(define-hot queue-first ((line line)) (or null flight)
  "The first call of LINE's queue that has not ended; those before it are let go of."
  (loop
    (let ((flight (line-queue-head line)))
      (cond ((null flight) (return nil))
            ((not (flight-ended flight)) (return flight))
            (t (unqueue-first line)
               (give-flight-back (the lane (line-lane line)) flight))))))

(define-hot unqueue-first ((line line)) null
  "Take the first call out of LINE's queue."
  (let ((flight (the flight (line-queue-head line))))
    (unless (setf (line-queue-head line) (flight-later flight))
      (setf (line-queue-tail line) nil))
    (setf (flight-later flight) nil
          (flight-queued flight) nil)
    nil))
