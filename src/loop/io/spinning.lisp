;;;; Spinning: a thread that waits for events of a loop may look for them again and again for some
;;;; microseconds before it sleeps. To wake a thread that sleeps on another processor takes up to
;;;; 30 µs, more than a short call takes in all; two ends that both spin answer each other in 12 µs,
;;;; and spend less of the processors than ends that sleep and wake each other.
;;;;
;;;; That pays only where one end's octets make the other answer at once, and only while both spin.
;;;; So a loop finds out what its peer does. It looks at waits that end with a single event, always
;;;; of the same source (STREAK), and of those before which it has sent something, spins through
;;;; some for a trial:
;;;;   - a loop with a thread of its own through one, from time to time. If the event comes within
;;;;     +SPIN-NS+, the peer does not sleep between two messages, and the loop goes on spinning;
;;;;   - a loop that a caller drives, more rarely, through so many in a row that its peer, which may
;;;;     be such a loop as well, has a trial meanwhile and finds the caller awake.
;;;; Trials that fail grow rare (PAUSE). A loop that spins stops after some waits that last longer
;;;; than +SPIN-NS+, or at once when events come of other sources. With less than two processors,
;;;; where the peer cannot run meanwhile or what is spun is taken from a quota, no loop spins; nor
;;;; in a simulated world.
;;;;
;;;; What is fetched while spinning is what would have been fetched by a wait: the inbox counts as
;;;; asleep, and who posts wakes the poller. So no event can be missed.

(in-package #:clgrpc.loop)

(defconstant +spin-ns+ 20000
  "A loop that spins sleeps after so long: about what sleeping and being woken costs.")
(defconstant +trial-ns+ 50000
  "A caller that tries whether spinning pays spins so long, and so does a loop whose last spin was
in vain: its peer may have to be woken first.")
(defconstant +longest-look-ns+ 5000
  "A look that takes longer was interrupted by another thread.")
(defconstant +trials+ 192
  "Through so many waits in a row a caller spins for a trial, unless it is in vain.")
(defconstant +steady+ 8
  "After so many waits that ended with an event of the same source there may be a trial.")
(defconstant +credit+ 4
  "After so many waits in a row that were too long a loop does not spin any more.")
(defconstant +least-pause+ 16
  "How many waits, at least, a loop sleeps through between two trials.")
(defconstant +longest-pause+ 128
  "The most, for a loop with a thread of its own: fewer than +TRIALS+.")
(defconstant +longest-driven-pause+ 8192
  "The most, for a loop that a caller drives.")
(defconstant +wins+ 256
  "When spinning has paid so often it is tried again soon after it has ceased to pay.")

(defstruct (spinner (:copier nil))
  "What a loop knows of its waits."
  (token 0 :type os:event-token)        ; of the only source that had an event last; 0 if not one
  (streak 0 :type (integer 0 8))        ; waits in a row that ended so, as far as they matter
  (credit 0 :type (integer 0 4))        ; so many failures are left until the loop spins no more
  (trials 0 :type (integer 0 192))      ; waits left of the trial under way
  (pause 16 :type (integer 16 8192))   ; waits between this trial and the next
  (left 16 :type (integer 0 8192))     ; of these, those that are still to come
  (wins 0 :type (integer 0 256))        ; waits that spinning has paid for since the last trial
  (sent 0 :type (unsigned-byte 62))     ; octets that the loop had sent when it last waited
  (spun-ns 0 :type (unsigned-byte 62))) ; how long it has spun, in all

(declaim (sb-ext:freeze-type spinner))

(defmethod print-object ((spinner spinner) stream)
  (print-unreadable-object (spinner stream :type t)
    (format stream "~:[sleeps~;spins~]" (plusp (spinner-credit spinner)))))

(defun make-spinner-if-useful ()
  "A spinner, or nil for a loop that never spins."
  (and (not (simulated-p))
       (<= 2 (os:processor-limit))
       (make-spinner)))

(define-hot forget-trials ((spinner spinner)) null
  "What comes now is of another source: no more spinning, and a trial under way is over. How rare
trials are stays, or a source now and then would have them made for ever in vain; if spinning has
paid until now, they come soon."
  (when (= +wins+ (spinner-wins spinner))
    (setf (spinner-wins spinner) 0
          (spinner-pause spinner) +least-pause+
          (spinner-left spinner) +least-pause+))
  (when (plusp (spinner-trials spinner))
    (setf (spinner-left spinner) (spinner-pause spinner)
          (spinner-pause spinner) (max (spinner-pause spinner)
                                       (min +longest-pause+ (* 2 (spinner-pause spinner))))))
  (setf (spinner-streak spinner) 0
        (spinner-credit spinner) 0
        (spinner-trials spinner) 0)
  nil)

(define-hot note-source ((spinner spinner) (token os:event-token)) null
  "A wait has ended with one event, of the source with TOKEN, or, if that is 0, otherwise."
  (cond ((zerop token) (forget-trials spinner))
        ((= token (spinner-token spinner))
         (when (< (spinner-streak spinner) +steady+) (incf (spinner-streak spinner))))
        (t (forget-trials spinner)))
  (setf (spinner-token spinner) token)
  nil)

(define-hot spin-time-ns ((spinner spinner) (driven boolean)) (integer 0 50000)
  "How long the wait that begins may spin; DRIVEN says whether a caller drives the loop."
  (cond ((= +credit+ (spinner-credit spinner)) +spin-ns+)
        ;; one pause has both ends sleep; to be there again takes the time that the other one wakes
        ((plusp (spinner-credit spinner)) +trial-ns+)
        ((< (spinner-streak spinner) +steady+) 0)
        ((plusp (spinner-left spinner))
         (decf (spinner-left spinner))
         0)
        (t
         (when (zerop (spinner-trials spinner))
           (setf (spinner-trials spinner) (if driven +trials+ 1)))
         (if driven +trial-ns+ +spin-ns+))))

(define-hot note-spin ((spinner spinner) (driven boolean) (waited-ns (or null (integer 0 100000))))
    null
  "The loop has spun through a wait of WAITED-NS, or, if that is nil, in vain."
  (let ((credit (spinner-credit spinner)) (trials (spinner-trials spinner)))
    (cond ((and waited-ns (<= waited-ns +spin-ns+))
           (setf (spinner-credit spinner) +credit+
                 (spinner-trials spinner) 0)
           (when (< (spinner-wins spinner) +wins+) (incf (spinner-wins spinner))))
          ((plusp credit)
           (when (zerop (setf (spinner-credit spinner) (1- credit))) (pause-trials spinner driven)))
          (t
           (setf (spinner-trials spinner) (max 0 (- trials (if waited-ns 1 +steady+))))
           (when (zerop (spinner-trials spinner)) (pause-trials spinner driven))))
    nil))

(define-hot pause-trials ((spinner spinner) (driven boolean)) null
  "A trial has failed, or spinning does not pay any more."
  (when (= +wins+ (shiftf (spinner-wins spinner) 0)) (setf (spinner-pause spinner) +least-pause+))
  (setf (spinner-left spinner) (spinner-pause spinner)
        (spinner-pause spinner) (if driven
                                    (min +longest-driven-pause+ (* 8 (spinner-pause spinner)))
                                    (min +longest-pause+ (* 2 (spinner-pause spinner)))))
  nil)
