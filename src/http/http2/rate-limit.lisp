;;;; Rate limits of frames that cost us more than they cost the peer (RFC 9113 section 10.5): resets
;;;; ("rapid reset", including resets that a peer makes us send), frames without content, and
;;;; answers that the peer does not read.
;;;;
;;;; Resets and idle frames have a rate limit each: a burst that is refilled at a rate. A connection
;;;; whose peer exceeds a rate limit ends with ENHANCE_YOUR_CALM. The state of a rate limit is one
;;;; number, the time at which the whole burst will be allowed again. An event moves that time one
;;;; interval later. If the time is then further in the future than a burst of intervals, the limit
;;;; is exceeded.
;;;;
;;;; The frequent frames of ordinary peers are not charged (rate-credit.lisp): as many resets as
;;;; calls were served; a PING, by which peers measure bandwidth, if calls began or ended, or DATA
;;;; was sent, since the last PING; WINDOW_UPDATEs and late frames, as far as DATA and new streams
;;;; have earned them. A frame is late if it has no content and its stream had ended, but its sender
;;;; did not know of the end yet. Other PINGs of clients are strikes, the stricter rule of gRFC A8.
;;;;
;;;; Answers are counted while they wait in the output; if there are more than the option
;;;; max-queued-control-frames, the connection ends. The output of a busy connection may never be
;;;; empty, so answers are counted in two parts, those before a mark and those after it. Once all
;;;; octets before the mark are sent, the answers of the first part no longer count; then the mark
;;;; moves to the end of the output.

(in-package #:clgrpc.http2)

(define-hot charge-rate-limit ((due time-ns) (now time-ns) (burst (unsigned-byte 31))
                              (per-second (unsigned-byte 31)))
    (values time-ns boolean)
  "Count one event at NOW against the rate limit whose state is DUE. Return two values: the new
state, and true if the limit is exceeded."
  (let* ((interval (floor 1000000000 (max 1 per-second)))
         (due (+ interval (max due now))))
    (declare (type time-ns due))
    (values due (< (* burst interval) (- due now)))))

(defmacro charge ((connection due burst per-second) text)
  "Count one event against the rate limit in the slot DUE of CONNECTION's counters; the options
BURST and PER-SECOND define the limit. End CONNECTION with TEXT if the limit is exceeded."
  (flet ((option (name) `(,name (connection-options ,connection))))
    `(multiple-value-bind (due exceeded)
         (charge-rate-limit (,due (connection-counters ,connection))
                            (connection-last-receive-ns ,connection)
                            ,(option burst) ,(option per-second))
       (setf (,due (connection-counters ,connection)) due)
       (when exceeded
         (fail-connection ,connection +enhance-your-calm+ ,text))
       nil)))

(define-hot charge-reset ((connection connection)) null
  "Count that the client has reset a stream, or has made us reset one."
  (when (and (connection-server-p connection) (not (reset-earned-p connection)))
    (charge (connection counters-resets-due options-max-reset-burst
                        options-max-resets-per-second)
            "too many streams are reset"))
  nil)

(define-hot charge-idle-frame ((connection connection)) null
  "Count a frame of the peer that carries no data."
  (charge (connection counters-idle-due options-max-idle-frame-burst
                      options-max-idle-frames-per-second)
          "too many frames that carry nothing"))

(define-hot charge-update ((connection connection)) null
  "Count a WINDOW_UPDATE of the peer, or a frame without content on a stream that has ended."
  (let ((counters (connection-counters connection)))
    (if (plusp (counters-updates-earned counters))
        (decf (counters-updates-earned counters))
        (charge-idle-frame connection)))
  nil)

(defconstant +long-ping-interval-ns+ (* 2 60 60 1000000000)
  "The minimum time in nanoseconds between two PINGs of a client while no call is under way (gRFC
A8).")

(defun shortest-ping-interval (connection)
  "Return the minimum time in nanoseconds between two PINGs of the client."
  (let* ((options (connection-options connection))
         (interval (seconds-ns (options-min-ping-interval-seconds options))))
    (if (and (zerop (connection-stream-count connection))
             (not (options-ping-without-calls options)))
        (max interval +long-ping-interval-ns+)
        interval)))

(define-hot charge-ping ((connection connection)) null
  "Count a PING of the peer. A client's PING that follows the previous one too soon is a strike
(gRFC A8)."
  (let* ((counters (connection-counters connection))
         (now (connection-last-receive-ns connection))
         (before (shiftf (counters-pinged-ns counters) now)))
    (cond ((work-since-ping-p connection)
           (setf (counters-ping-strikes counters) 0))
          ((not (connection-server-p connection))
           (charge-idle-frame connection))
          ((and (plusp before)
                (< (- now before) (the (signed-byte 62) (shortest-ping-interval connection)))
                (< (options-max-ping-strikes (connection-options connection))
                   (incf (counters-ping-strikes counters))))
           (fail-connection connection +enhance-your-calm+ "too_many_pings"))))
  nil)

(define-hot note-control-frame ((connection connection)) null
  "Count an answer that the peer provoked, before it is written."
  (let* ((counters (connection-counters connection))
         (fill (buffer-fill (output-buffer connection)))
         (sent (connection-sent-octets connection)))
    (when (<= (counters-control-mark counters) sent)
      (setf (counters-control-frames counters)
            (if (zerop fill) 0 (counters-later-control-frames counters))
            (counters-later-control-frames counters) 0
            (counters-control-mark counters) (+ sent fill)))
    (incf (counters-later-control-frames counters))
    (when (< (options-max-queued-control-frames (connection-options connection))
             (incf (counters-control-frames counters)))
      (fail-connection connection +enhance-your-calm+ "the peer does not read answers to frames"))
    nil))
