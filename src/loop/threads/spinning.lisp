;;;; Spinning: a thread that waits for events of a loop may poll for them for some microseconds
;;;; before it sleeps. Waking a thread that sleeps on another processor takes up to 30 µs, more than
;;;; a whole short call. Two ends that both spin answer each other in 12 µs, and use less of the
;;;; processors than ends that sleep and wake each other.
;;;;
;;;; This is useful only if the octets of one end make the other end answer at once, and only while
;;;; both spin. So a loop finds out how its peer behaves. The rule counts waits that end with a
;;;; single event, always of the same source (STREAK). As a trial, a loop spins through some of
;;;; these waits after it has sent octets:
;;;;   - a loop with a thread of its own spins through one, from time to time. If the event arrives
;;;;     within +SPIN-NS+, the peer does not sleep between two messages, and the loop continues to
;;;;     spin;
;;;;   - a loop that a caller drives begins a trial more rarely, and spins through many waits in a
;;;;     row: its peer, which may be such a loop as well, has a trial in that time and finds the
;;;;     caller awake. A peer in the same process begins its trial at once (**CALLERS-TRIALS**), and
;;;;     again now and then while the caller spins.
;;;; The pauses between trials that fail grow (PAUSE). But a caller that then begins to send far
;;;; fewer octets at a time than in the failed trial, as after calls with long messages, makes the
;;;; next trial soon. A loop stops spinning after several waits longer than +SPIN-NS+, or at once
;;;; when events of other sources arrive. A loop with a thread of its own also stops when about a
;;;; third of its waits, or more, are longer (BALANCE): a wait that spinning shortens saves less
;;;; time than a wait that is too long costs. So a server does not spin in vain for a client that
;;;; acknowledges each answer at once and then works on it for long. With fewer than two processors
;;;; no loop spins, since the peer could not run meanwhile, or spinning would use up a quota of
;;;; processor time. In a simulated world no loop spins either.
;;;;
;;;; Spinning fetches the same events as a wait: the inbox is marked as asleep, and a thread that
;;;; posts wakes the poller. So no event can be missed.

(in-package #:clgrpc.loop)

(defconstant +spin-ns+ 24000
  "The time in nanoseconds after which a loop stops spinning and sleeps. It is about the time that
sleeping and waking up cost.")
(defconstant +trial-ns+ 50000
  "The time in nanoseconds for which a caller spins in a trial, or a loop spins after a failed spin.
It is longer because the peer may have to be woken first.")
(defconstant +answer-ns+ 100000
  "The time in nanoseconds for which a loop spins because a caller of its process has begun a trial.
It is longer because that caller may still sleep in the first wait of its trial.")
(defconstant +answers+ 4
  "The number of waits in a row through which a loop spins because of a caller's trial, unless one
of these waits is longer.")
(defconstant +longest-look-ns+ 5000
  "The maximum time in nanoseconds that a look takes if no other thread interrupts it.")
(defconstant +trials+ 192
  "The number of waits in a row through which a caller spins in a trial, unless the trial fails.")
(defconstant +steady+ 8
  "The number of waits in a row, each ended by an event of the same source, after which a trial is
possible.")
(defconstant +credit+ 4
  "The number of waits in a row, longer than +SPIN-NS+, after which a loop stops spinning.")
(defconstant +first-balance+ 16
  "The balance with which a loop begins to spin.")
(defconstant +most-balance+ 64
  "The maximum balance. With this balance a loop that has spun well for long stops after 64 pairs of
a short and a long wait.")
(defconstant +failure-cost+ 2
  "The number by which a wait that was too long lowers the balance; a wait that spinning shortened
raises the balance by 1.")
(defconstant +least-pause+ 16
  "The minimum number of waits between two trials in which a loop sleeps.")
(defconstant +longest-pause+ 128
  "The maximum pause between trials, in waits, of a loop that has its own thread. It is shorter than
+TRIALS+.")
(defconstant +longest-driven-pause+ 8192
  "The maximum pause between trials, in waits, of a loop that a caller drives. While the caller
spins, this is also the pause between the trials that it makes other loops begin.")
(defconstant +smaller+ 16
  "A caller begins its next trial after this many sends in a row that are much smaller than the
sends of its last failed trial.")
(defconstant +wins+ 256
  "The number of waits that spinning must have shortened so that, when it ceases to be useful, the
next trial begins soon.")

(defstruct (spin-state (:copier nil))
  "The data of a loop about its waits."
  ;; the token of the source whose event alone ended the last wait; else 0
  (token 0 :type os:event-token)
  (streak 0 :type (integer 0 8))        ; waits in a row that ended by TOKEN, up to +STEADY+
  (credit 0 :type (integer 0 4))        ; failures left until the loop stops spinning
  (trials 0 :type (integer 0 192))      ; waits left of the trial under way
  (pause 16 :type (integer 16 8192))   ; waits between this trial and the next
  (left 16 :type (integer 0 8192))     ; waits left of the present pause
  (wins 0 :type (integer 0 256))        ; waits that spinning has shortened, up to +WINS+
  (tried 0 :type (unsigned-byte 40))    ; octets of a sending in a caller's last trial, on average
  (smaller 0 :type (integer 0 16))      ; sendings in a row of less than an eighth of TRIED
  (balance 0 :type (integer 0 64))      ; the balance of short and long waits
  ;; the value of **CALLERS-TRIALS** when this loop last answered a trial
  (answered 0 :type fixnum)
  (sent 0 :type (unsigned-byte 62))     ; octets that the loop had sent when it last waited
  (spun-ns 0 :type (unsigned-byte 62))) ; how long the loop has spun, in all

(declaim (sb-ext:freeze-type spin-state))

(define-printer (spin-state spin-state)
  "~:[sleeps~;spins~]" (plusp (spin-state-credit spin-state)))

(declaim (type fixnum **callers-trials**))
(sb-ext:define-load-time-global **callers-trials** 0) ; trials begun by callers; atomic

(defun make-spin-state-if-useful ()
  "Return a spin state, or nil if the loop must never spin."
  (and (not (simulated-p))
       (<= 2 (os:processor-limit))
       (make-spin-state)))

(define-hot forget-trials ((spin-state spin-state)) null
  "Stop spinning and end a trial under way, because an event comes from another source. The pause
between trials remains, because otherwise occasional events of another source would cause failing
trials for ever. If spinning was useful until now, the next trial begins soon."
  (when (= +wins+ (spin-state-wins spin-state))
    (setf (spin-state-wins spin-state) 0
          (spin-state-pause spin-state) +least-pause+
          (spin-state-left spin-state) +least-pause+))
  (when (plusp (spin-state-trials spin-state))
    (setf (spin-state-left spin-state) (spin-state-pause spin-state)
          (spin-state-pause spin-state) (max (spin-state-pause spin-state)
                                             (min +longest-pause+
                                                  (* 2 (spin-state-pause spin-state))))))
  (setf (spin-state-streak spin-state) 0
        (spin-state-credit spin-state) 0
        (spin-state-trials spin-state) 0)
  nil)

(define-hot note-source ((spin-state spin-state) (token os:event-token)) null
  "Note that a wait has ended with one event, of the source with TOKEN, or in another way if TOKEN
is 0."
  (cond ((zerop token) (forget-trials spin-state))
        ((= token (spin-state-token spin-state))
         (when (< (spin-state-streak spin-state) +steady+) (incf (spin-state-streak spin-state))))
        (t (forget-trials spin-state)))
  (setf (spin-state-token spin-state) token)
  nil)

(define-hot (renew-trial :inline t) ((spin-state spin-state)) null
  "Make the loops of the process begin a trial now and then while a caller, whose loop has
SPIN-STATE, spins. A peer that is woken on the caller's processor answers at once, but its own
trials fail, because the caller does not run meanwhile. When the peer spins for long, the kernel
moves the caller or the peer to another processor."
  (cond ((plusp (spin-state-left spin-state)) (decf (spin-state-left spin-state)))
        (t (setf (spin-state-left spin-state) +longest-driven-pause+)
           (sb-ext:atomic-incf **callers-trials**)))
  nil)

(define-hot end-long-pause ((spin-state spin-state) (octets (unsigned-byte 40))) null
  "Note that a caller has sent OCTETS before a wait in a pause. If +SMALLER+ sends in a row had far
fewer octets than those of the last trial, end the pause."
  (cond ((<= (spin-state-tried spin-state) (* 8 octets)) (setf (spin-state-smaller spin-state) 0))
        ((= +smaller+ (incf (spin-state-smaller spin-state)))
         (setf (spin-state-smaller spin-state) 0
               (spin-state-tried spin-state) 0
               (spin-state-left spin-state) 1)))
  nil)

(define-hot spin-time-ns
            ((spin-state spin-state) (driven boolean) (octets (unsigned-byte 40)))
    (integer 0 100000)
  "Return the time in nanoseconds for which the wait that begins now may spin. DRIVEN is true if a
caller drives the loop; the loop has sent OCTETS since its last wait."
  (cond ((= +credit+ (spin-state-credit spin-state))
         (when driven (renew-trial spin-state))
         +spin-ns+)
        ;; after a pause both ends sleep, so this end spins until the other end has been woken
        ((plusp (spin-state-credit spin-state)) +trial-ns+)
        ((< (spin-state-streak spin-state) +steady+) 0)
        ((and (not driven) (/= **callers-trials** (spin-state-answered spin-state)))
         (setf (spin-state-answered spin-state) **callers-trials**
               (spin-state-trials spin-state) +answers+)
         +answer-ns+)
        ((and (not driven) (< 1 (spin-state-trials spin-state))) +answer-ns+)
        ((plusp (spin-state-left spin-state))
         (when driven (end-long-pause spin-state octets))
         (decf (spin-state-left spin-state))
         0)
        ((not driven)
         (setf (spin-state-trials spin-state) 1)
         +spin-ns+)
        (t
         (cond ((zerop (spin-state-trials spin-state))
                (setf (spin-state-trials spin-state) +trials+
                      (spin-state-tried spin-state) octets)
                (sb-ext:atomic-incf **callers-trials**))
               (t (setf (spin-state-tried spin-state)
                        (ash (+ (* 7 (spin-state-tried spin-state)) octets) -3))))
         +trial-ns+)))

(define-hot note-spin
            ((spin-state spin-state) (driven boolean) (waited-ns (or null (integer 0 100000))))
    null
  "Note that the loop has spun through a wait of WAITED-NS or, if that is nil, that the spinning has
failed."
  (let ((credit (spin-state-credit spin-state)) (trials (spin-state-trials spin-state)))
    (cond ((and waited-ns (<= waited-ns +spin-ns+))
           (setf (spin-state-balance spin-state)
                 (if (zerop credit)
                     +first-balance+
                     (min +most-balance+ (1+ (spin-state-balance spin-state))))
                 (spin-state-credit spin-state) +credit+
                 (spin-state-trials spin-state) 0)
           (when (< (spin-state-wins spin-state) +wins+) (incf (spin-state-wins spin-state))))
          ((plusp credit)
           (setf (spin-state-balance spin-state)
                 (max 0 (- (spin-state-balance spin-state) +failure-cost+))
                 (spin-state-credit spin-state)
                 (if (and (not driven) (zerop (spin-state-balance spin-state)))
                     0
                     (1- credit)))
           (when (zerop (spin-state-credit spin-state)) (pause-trials spin-state driven)))
          (t
           (setf (spin-state-trials spin-state) (max 0 (- trials (if waited-ns 1 +steady+))))
           (when (zerop (spin-state-trials spin-state)) (pause-trials spin-state driven))))
    nil))

(define-hot pause-trials ((spin-state spin-state) (driven boolean)) null
  "Begin no trials for a while, because one has failed or spinning has ceased to be useful."
  (when (= +wins+ (shiftf (spin-state-wins spin-state) 0))
    (setf (spin-state-pause spin-state) +least-pause+))
  (setf (spin-state-left spin-state) (spin-state-pause spin-state)
        (spin-state-pause spin-state) (if driven
                                          (min +longest-driven-pause+
                                               (* 8 (spin-state-pause spin-state)))
                                          (min +longest-pause+
                                               (* 2 (spin-state-pause spin-state)))))
  nil)
