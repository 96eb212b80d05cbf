;;;; Reading late. To wake a thread costs several times as much as the calls that it is woken for.
;;;; While an open loop begins calls every millisecond or so, its thread need not be woken for their
;;;; responses as well: it reads them when it is awake for the next calls, and the kernel says when
;;;; each has arrived (SO_TIMESTAMPNS), so latencies are what they would be otherwise.
;;;;
;;;; The kernel tells the time of the last octet that a read got. So responses are read one by one,
;;;; which needs their length (CHUNK): that of the last ones, as long as all are equally long. Where
;;;; a read got more than one response, or not to its end, their times are not known exactly; when
;;;; that is so of more than a few, the lane reads in time for a while, and then tries again.
;;;;
;;;; All of it is a poller for the lane's loop: it sleeps without looking for events, and looks for
;;;; them after the calls that were due have been sent.

(in-package #:clgrpc.load)

(defconstant +longest-blind-ns+ 2000000
  "A lane that has to wait for longer looks for events meanwhile.")
(defconstant +blind-turns+ 64 "The poller looks for events at least once in so many turns.")
(defconstant +judged-calls+ 64 "After so many calls it is judged whether their times are exact.")
(defconstant +inexact-calls+ 2 "So many of them may be inexact.")
(defconstant +first-pause-ns+ +ns-per-second+ "How long a lane reads in time, at first.")
(defconstant +longest-pause-ns+ (* 64 +ns-per-second+) "And at most.")

(defstruct (late (:copier nil))
  "The state of the poller of a lane's loop."
  (epoll nil :type loop:poller)         ; what it looks with
  (on nil :type boolean)                ; the lane reads late
  (looked nil :type boolean)            ; there was a look since the last sleep
  (blind-turns 0 :type index)           ; turns since the last look
  (timespec (make-octets 16) :type octets) ; for the kernel
  (area (os:make-message-area) :type octets) ; for the kernel
  (exact 0 :type index)                 ; calls since the last judgement whose time is exact
  (inexact 0 :type index)               ; the others
  (pause-ns +first-pause-ns+ :type nanoseconds) ; how long the lane will read in time next
  (paused-until-ns 0 :type nanoseconds)) ; until then it reads in time

(declaim (sb-ext:freeze-type late))

(define-hot look ((late late) (timeout-ns (signed-byte 62))) index
  (setf (late-looked late) t
        (late-blind-turns late) 0)
  (let ((epoll (late-epoll late)))
    (the index (values (funcall (loop:poller-wait epoll) epoll timeout-ns)))))

(define-hot wait-late ((poller loop:poller) (timeout-ns (signed-byte 62))) index
  "What the loop calls to wait."
  (let ((late (the late (loop:poller-state poller))))
    (cond ((not (late-on late)) (look late timeout-ns))
          ((zerop timeout-ns)           ; there is something to do
           (if (< (incf (late-blind-turns late)) +blind-turns+)
               0
               (look late 0)))
          ((not (< 0 timeout-ns +longest-blind-ns+)) (look late timeout-ns))
          (t
           (let ((found (if (late-looked late) 0 (look late 0))))
             (when (zerop found)
               (setf (late-looked late) nil)
               (os:sleep-for (late-timespec late) timeout-ns))
             found)))))

(defun make-late-poller ()
  "A poller for the loop of a lane, which waits to the nanosecond."
  (let ((epoll (loop:make-epoll-poller :precise t)))
    (flet ((on-epoll (function)
             (lambda (poller &rest arguments)
               (declare (ignore poller))
               (apply function epoll arguments))))
      (loop:make-poller :add (on-epoll (loop:poller-add epoll))
                        :remove (on-epoll (loop:poller-remove epoll))
                        :wait #'wait-late
                        :wake (on-epoll (loop:poller-wake epoll))
                        :close (on-epoll (loop:poller-close epoll))
                        :tokens (loop:poller-tokens epoll) :flags (loop:poller-flags epoll)
                        :state (make-late :epoll epoll)))))

(defun loop-late (loop)
  "The LATE of LOOP; nil if its poller is another."
  (let ((state (loop:poller-state (loop:event-loop-poller loop))))
    (and (typep state 'late) state)))

(defun read-in-time (late now)
  "Do not read late for a while from NOW on."
  (setf (late-on late) nil
        (late-paused-until-ns late) (+ now (late-pause-ns late))
        (late-pause-ns late) (min +longest-pause-ns+ (* 2 (late-pause-ns late))))
  nil)

(define-hot judge-times ((late late) (exact index) (inexact index) (now nanoseconds)) null
  "The times of so many calls more are EXACT, of so many INEXACT."
  (incf (late-exact late) exact)
  (incf (late-inexact late) inexact)
  (when (<= +judged-calls+ (+ (late-exact late) (late-inexact late)))
    (when (< +inexact-calls+ (late-inexact late)) (read-in-time late now))
    (setf (late-exact late) 0
          (late-inexact late) 0))
  nil)
