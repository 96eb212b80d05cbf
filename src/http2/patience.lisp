;;;; Patience with frames that cost us more than the peer: resets (RFC 9113 section 10.5; "rapid
;;;; reset", also those that a peer provokes us to send) and frames that carry nothing. Each kind
;;;; has an allowance, a burst that comes back at a rate; who overdraws it is told
;;;; ENHANCE_YOUR_CALM.
;;;;
;;;; An allowance is one number, the time at which all of it will be back: a charge puts that off by
;;;; one interval, and it is overdrawn if that is further away than the burst's intervals. What
;;;; decent peers do in numbers is not charged: as many resets as calls were served; a PING, by
;;;; which peers measure bandwidth, if calls or DATA went since; and, as far as DATA and new streams
;;;; have earned them, WINDOW_UPDATEs and frames that are late, without content on a stream that has
;;;; ended, of which their sender did not know yet. Other PINGs of clients have a stricter rule, the
;;;; one of gRFC A8.

(in-package #:clgrpc.http2)

(define-hot charge-allowance ((due time-ns) (now time-ns) (burst (unsigned-byte 31))
                              (per-second (unsigned-byte 31)))
    (values time-ns boolean)
  "Charge one event at NOW to the allowance DUE. Return it anew, and whether it is overdrawn."
  (let* ((interval (floor 1000000000 (max 1 per-second)))
         (due (+ interval (max due now))))
    (declare (type time-ns due))
    (values due (< (* burst interval) (- due now)))))

(defmacro charge ((connection due burst per-second) text)
  "Charge the allowance in the slot DUE of CONNECTION's accounting, of which the options BURST and
PER-SECOND say how large it is; end CONNECTION with TEXT if that overdraws it."
  (flet ((option (name) `(,name (connection-options ,connection))))
    `(multiple-value-bind (due overdrawn)
         (charge-allowance (,due (connection-accounting ,connection))
                           (connection-last-receive-ns ,connection)
                           ,(option burst) ,(option per-second))
       (setf (,due (connection-accounting ,connection)) due)
       (when overdrawn
         (fail-connection ,connection +enhance-your-calm+ ,text))
       nil)))

(define-hot charge-reset ((connection connection)) null
  "The client has reset a stream, or made us reset one."
  (when (and (connection-server-p connection) (not (reset-earned-p connection)))
    (charge (connection accounting-resets-due options-max-reset-burst
                        options-max-resets-per-second)
            "too many streams are reset"))
  nil)

(define-hot charge-idle-frame ((connection connection)) null
  "The peer has sent a frame that carries nothing."
  (charge (connection accounting-idle-due options-max-idle-frame-burst
                      options-max-idle-frames-per-second)
          "too many frames that carry nothing"))

(define-hot charge-update ((connection connection)) null
  "The peer has sent a WINDOW_UPDATE, or a frame without content on a stream that has ended."
  (let ((accounting (connection-accounting connection)))
    (if (plusp (accounting-updates-earned accounting))
        (decf (accounting-updates-earned accounting))
        (charge-idle-frame connection)))
  nil)

(defconstant +long-ping-interval-ns+ (* 2 60 60 1000000000)
  "How rare PINGs should be while no call is under way (gRFC A8).")

(defun shortest-ping-interval (connection)
  "In nanoseconds, at least so long after a PING another may come."
  (let* ((options (connection-options connection))
         (interval (seconds-ns (options-min-ping-interval-seconds options))))
    (if (and (zerop (connection-stream-count connection))
             (not (options-ping-without-calls options)))
        (max interval +long-ping-interval-ns+)
        interval)))

(define-hot charge-ping ((connection connection)) null
  "The peer has sent a PING. A client's that comes too soon is a strike (gRFC A8)."
  (let* ((accounting (connection-accounting connection))
         (now (connection-last-receive-ns connection))
         (before (shiftf (accounting-pinged-ns accounting) now)))
    (cond ((work-since-ping-p connection)
           (setf (accounting-ping-strikes accounting) 0))
          ((not (connection-server-p connection))
           (charge-idle-frame connection))
          ((and (plusp before)
                (< (- now before) (the (signed-byte 62) (shortest-ping-interval connection)))
                (< (options-max-ping-strikes (connection-options connection))
                   (incf (accounting-ping-strikes accounting))))
           (fail-connection connection +enhance-your-calm+ "too_many_pings"))))
  nil)

(define-hot note-control-frame ((connection connection)) null
  "Count an answer that the peer provoked, before it is written."
  (let ((accounting (connection-accounting connection)))
    (output-buffer connection)          ; if it is empty the count begins anew
    (when (< (options-max-queued-control-frames (connection-options connection))
             (incf (accounting-control-frames accounting)))
      (fail-connection connection +enhance-your-calm+ "answers to too many frames are not read"))
    nil))
