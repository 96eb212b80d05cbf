;;;; The baton: the right to run a loop. A loop is data; a thread runs it only while it holds the
;;;; baton. Code touches the baton only through TAKE, OVERTAKE, LEND, LEND-TO-WAIT, RESUME,
;;;; HAND-OVER and RETIRE.
;;;;
;;;; The baton is one word: three bits of state, and above them a sequence number that grows with
;;;; every change, except from lent to held and between held and waiting. THREAD is the thread that
;;;; runs the loop.
;;;;   free    no thread runs the loop                     TAKE: free → taking → held
;;;;   held    THREAD runs it                              LEND: held → lent
;;;;   lent    THREAD is in user code and may be overtaken LEND-TO-WAIT: held → waiting
;;;;   waiting THREAD waits for events, and may be         RESUME: lent or waiting → held, for
;;;;           overtaken                                     THREAD alone
;;;;   taking  another thread is about to be THREAD        OVERTAKE: lent or waiting → taking → held
;;;;   retired the loop has stopped for good               HAND-OVER: held → free
;;;;                                                       RETIRE: held → retired
;;;;
;;;; The rules that make this safe:
;;;; - All turn state is in the EVENT-LOOP structure, so a thread that takes the baton continues
;;;;   where the previous thread stopped. User code runs only in deferred functions, through
;;;;   CALL-USER; when that returns :LOST, the thread must not touch the loop again. When a
;;;;   non-local exit leaves user code, the thread takes the baton back, or finds that it has lost
;;;;   it, before any other code of the loop runs. Code through which the exit passes calls
;;;;   IN-EVENT-LOOP-P, and if this is true passes the baton on.
;;;; - While the baton is lent, no reachable object points into the loop's buffers.
;;;; - User code uses the loop only within WITH-BATON, which takes the baton back for that time. If
;;;;   the baton is lost, user code posts instead.
;;;; - A thread that takes the baton drains the inbox first.
;;;; - User code that takes too long, but takes the baton back again and again, gives the baton up
;;;;   itself once the watchdog has marked the code as late.
;;;; - A thread that is about to sleep in user code first calls PREPARE-TO-WAIT, which makes another
;;;;   thread run the loop, unless the sleeping thread may run the loop itself meanwhile (DRIVE-ON).
;;;;   A request to take a loop over names the lent baton that was observed, and only that baton is
;;;;   overtaken.
;;;; - Only the loop closes descriptors; tokens carry a generation.
;;;; - Interrupts are off from before a thread takes the baton until it has given it up, except in
;;;;   user code and in the wait for events. An interrupt in that wait may open a debugger, which
;;;;   may then stay open for long. So a thread that was woken in this wait and does not continue
;;;;   may be overtaken, too; see watchdog.lisp and SLEEP-AS-LENDER.

(in-package #:clgrpc.loop)

(defconstant +free+ 0)
(defconstant +held+ 1)
(defconstant +lent+ 2)
(defconstant +taking+ 3)
(defconstant +retired+ 4)
(defconstant +waiting+ 5)

(deftype baton ()
  "The state of a baton and, above it, its sequence number."
  'sb-ext:word)

(define-hot (baton-state :inline t) ((baton baton)) (integer 0 7)
  "Return the state in the word BATON: one of the constants above, such as +FREE+."
  (ldb (byte 3 0) baton))

(define-hot (lent-p :inline t) ((baton baton)) boolean
  "True if another thread may overtake BATON and the thread that runs the loop may take it back."
  (or (= +lent+ (baton-state baton))
      (= +waiting+ (baton-state baton))))

(define-hot (next-baton :inline t) ((baton baton) (state (integer 0 4))) baton
  "Return BATON with the next sequence number and STATE."
  (logior state (ash (ldb (byte 60 0) (1+ (ash baton -3))) 3)))

(defvar *event-loop* nil
  "The loop that this thread runs or has run last; another thread may run that loop now.")

(defvar *interruptible* nil
  "True if this thread runs a loop, with interrupts off, and allows them where it runs user code or
waits for events. Interrupts are off everywhere else in the loop, because SBCL would otherwise
handle them wherever the loop's code waits for a lock.")

(defmacro with-user-interrupts (() &body body)
  "Do BODY, user code or the wait for events, with interrupts if this thread allows them. An
interrupt that arrived earlier is handled when BODY begins; therefore a handler for errors of BODY
must be outside of this macro. On a thread that runs no loop, interrupts stay as they are."
  (let ((function (gensym "BODY")))
    `(flet ((,function () ,@body))
       (declare (dynamic-extent #',function))
       (if *interruptible*
           (let ((sb-sys:*allow-with-interrupts* t)
                 (*interruptible* nil))
             (sb-sys:with-interrupts (,function)))
           (sb-sys:with-interrupts (,function))))))

(defmacro allowing-user-interrupts (&body body)
  "Do BODY, which runs a loop, so that WITH-USER-INTERRUPTS allows those interrupts that were
allowed outside of the surrounding SB-SYS:WITHOUT-INTERRUPTS."
  `(let ((*interruptible* (sb-sys:allow-with-interrupts sb-sys:*allow-with-interrupts*)))
     ,@body))

(defun runs-loop-p ()
  (and *event-loop* (in-event-loop-p *event-loop*)))

;;; Counts of lendings and losses, kept by the thread that has the baton

(define-hot (count-lent :inline t) ((loop event-loop)) (eql t)
  (incf (event-loop-lent loop))
  t)

(define-hot (count-lost :inline t) ((loop event-loop)) (eql t)
  (incf (event-loop-lost loop))
  t)

;;; The steps. All reads and writes of the loop's data come before the store that gives the baton
;;; away, hence the two barriers; on x86-64 they cost nothing.

(define-hot (seize :inline t) ((loop event-loop) (old baton)) boolean
  "Take the baton of LOOP for this thread if it is still OLD."
  (let ((taking (next-baton old +taking+)))
    (when (= old (compare-and-swap (event-loop-baton loop) old taking))
      (setf (event-loop-thread loop) sb-thread:*current-thread*)
      (sb-thread:barrier (:write))
      (setf (event-loop-baton loop) (next-baton taking +held+))
      t)))

(define-hot take ((loop event-loop)) boolean
  "Take the free baton of LOOP for this thread. Return false if another thread has it, or the loop
has stopped."
  (let ((old (event-loop-baton loop)))
    (and (= +free+ (baton-state old))
         (seize loop old))))

(define-hot overtake ((loop event-loop) (baton baton)) boolean
  "Take the baton of LOOP away from the thread that has lent it. BATON is the state in which it was
found lent; do nothing and return false if it has changed, because the thread has taken it back."
  (and (lent-p baton)
       (seize loop baton)
       (count-lost loop)))

(define-hot (lend :inline t) ((loop event-loop)) null
  "Allow another thread to take the baton of LOOP, which this thread holds, while user code runs."
  (count-lent loop)
  (sb-thread:barrier (:read))
  (sb-thread:barrier (:write))
  (setf (event-loop-baton loop) (next-baton (event-loop-baton loop) +lent+))
  (when **watchdog-asleep** (wake-watchdog))
  nil)

(define-hot (lend-to-wait :inline t) ((loop event-loop)) null
  "Allow another thread to take the baton of LOOP, which this thread holds, while it waits for
events. The watchdog is not woken."
  (sb-thread:barrier (:read))
  (sb-thread:barrier (:write))
  (setf (event-loop-baton loop) (logior +waiting+ (logandc2 (event-loop-baton loop) 7)))
  nil)

(define-hot (resume :inline t) ((loop event-loop)) boolean
  "Take back the baton that this thread lent. Return false if the baton is lost; then
IN-EVENT-LOOP-P is false."
  (loop
    (let ((old (event-loop-baton loop)))
      (sb-thread:barrier (:read))
      (cond ((not (in-event-loop-p loop)) (return nil))
            ((and (lent-p old)
                  (= old (compare-and-swap (event-loop-baton loop) old
                                           (logior +held+ (logandc2 old 7)))))
             (return t))
            ;; another thread is taking the baton, and will be THREAD at once
            (t (sb-ext:spin-loop-hint))))))

(define-hot give-up ((loop event-loop) (state (integer 0 4))) null
  "Give up the baton of LOOP, which this thread must hold, and leave it in STATE."
  (setf (event-loop-thread loop) nil)
  (sb-thread:barrier (:read))
  (sb-thread:barrier (:write))
  (setf (event-loop-baton loop) (next-baton (event-loop-baton loop) state))
  nil)

(define-hot hand-over ((loop event-loop)) null
  "Give up the baton of LOOP, which this thread must hold, so that another thread can take it."
  (give-up loop +free+))

(define-hot retire ((loop event-loop)) null
  "Give up the baton of LOOP, which has stopped. This thread must hold the baton; no thread gets it
again."
  (give-up loop +retired+))

;;; Operations built from the steps above

(define-hot (call-user :inline t) ((loop event-loop) (function function) (argument t))
    (values t (member :kept :lost))
  "Call FUNCTION, which calls user code in WITH-USER-INTERRUPTS, with ARGUMENT while the baton of
LOOP is lent. Return two values: the value of FUNCTION, and :KEPT or :LOST for the baton. After a
non-local exit IN-EVENT-LOOP-P is true if the baton was kept. A thread that overtakes the loop calls
NOTE-LATE with ARGUMENT first. Call this in a deferred function."
  (let ((value nil) (kept nil))
    (setf (event-loop-user loop) argument)
    (lend loop)
    (unwind-protect (setf value (funcall function argument))
      (setf kept (resume loop)))
    (values value (if kept :kept :lost))))

(define-hot (claim :inline t) ((loop event-loop)) (member nil :held :lent)
  "If this thread runs LOOP, make it hold the baton. Return :HELD if the thread held the baton
already. Return :LENT if it had lent the baton and has taken it back; it must lend the baton again.
Return NIL if the thread does not run LOOP."
  (let ((baton (event-loop-baton loop)))
    (sb-thread:barrier (:read))
    (cond ((not (in-event-loop-p loop)) nil)
          ((= +held+ (baton-state baton)) :held)
          ((resume loop) :lent))))

(define-hot holds-baton-p ((loop event-loop)) boolean
  "True if this thread holds the baton of LOOP."
  (let ((baton (event-loop-baton loop)))
    (sb-thread:barrier (:read))
    (and (= +held+ (baton-state baton))
         (in-event-loop-p loop))))

(define-hot (held-loop :inline t) () (or null event-loop)
  "Return the loop whose baton this thread holds, or nil if it holds none."
  (let ((loop *event-loop*))
    (and loop (holds-baton-p loop) loop)))

(define-hot (lend-again :inline t) ((loop event-loop)) null
  "Lend the baton of LOOP, which this thread's user code has taken back for a moment. If the
watchdog has found the user code to be late, it loses the loop instead."
  (if (= (event-loop-late-turn loop) (event-loop-turns loop))
      (leave-to-others loop)
      (lend loop))
  nil)

(define-hot call-with-baton ((loop event-loop) (function function)) (values t boolean)
  "If this thread runs LOOP, call FUNCTION with the baton held; return its value, and whether it was
called. If the watchdog has found the user code to be late, it loses the loop afterwards."
  (sb-sys:without-interrupts
    (ecase (claim loop)
      (:held (values (funcall function) t))
      (:lent (values (unwind-protect (funcall function) (lend-again loop)) t))
      ((nil) (values nil nil)))))

(defun leave-to-others (loop)
  "Hand LOOP over to a reserve thread, if a reserve thread is available, because this thread's user
code, which holds the baton for a moment, has taken too long."
  (setf (event-loop-late-turn loop) 0
        (event-loop-overtaken loop) t)
  (trace-event :loop :overtaken :loop loop)
  (note-late (event-loop-user loop))
  (hand-over loop)
  (unless (request-runner loop)
    (when (take loop) (lend loop))))

(define-hot resume-wait ((loop event-loop)) boolean
  "Take the baton of LOOP back if this thread has lent it to wait for events. Return true if this
thread has the baton again."
  (and (= +waiting+ (baton-state (event-loop-baton loop)))
       (resume loop)))

(defmacro with-baton ((loop) on-loop &body elsewhere)
  "If this thread runs LOOP, evaluate the form ON-LOOP; if the thread has lent the baton, take it
back for that time. Otherwise evaluate ELSEWHERE. Return the first value. This macro does what
CALL-WITH-BATON does, but without a function call, because user code may use it for each message."
  (let ((place (gensym "LOOP")) (claimed (gensym "CLAIMED")) (value (gensym "VALUE")))
    `(let ((,place ,loop) (,claimed nil) (,value nil))
       (sb-sys:without-interrupts
         (when (setf ,claimed (claim ,place))
           (unwind-protect (setf ,value ,on-loop)
             (when (eq :lent ,claimed) (lend-again ,place)))))
       (if ,claimed ,value (progn ,@elsewhere)))))

(defmacro with-taken-loop ((loop taking) &body body)
  "Evaluate TAKING, a form that takes the baton of LOOP for this thread. If TAKING returns true,
evaluate BODY, which must give the baton up, with *EVENT-LOOP* bound to LOOP and interrupts off
except in WITH-USER-INTERRUPTS. Return the value of BODY, or NIL if TAKING returns false."
  `(sb-sys:without-interrupts
     (when ,taking
       (let ((*event-loop* ,loop))
         (allowing-user-interrupts ,@body)))))

;;; A thread that is overtaken while it waits for events would continue to wait: it would take
;;; events from the thread that runs the loop now, and would not return when the loop stops. So the
;;; loop gets another poller; the thread is woken, and closes the poller with which it waited. The
;;; thread is an overtaken waiter until it has left its poller. If the thread leaves the poller
;;; before the loop gets another, the loop keeps its poller.

(defmacro with-overtaken-waiters ((loop) &body body)
  "Evaluate BODY, which changes the OVERTAKEN-WAITERS of LOOP or its poller, while this thread holds
the lock that guards both."
  `(sb-thread:with-mutex ((event-loop-lock ,loop)) ,@body))

(defun forget-overtaken-waiter (loop thread)
  "Remove THREAD from the OVERTAKEN-WAITERS of LOOP; return true if THREAD was among them. Call this
within WITH-OVERTAKEN-WAITERS."
  (when (member thread (event-loop-overtaken-waiters loop))
    (setf (event-loop-overtaken-waiters loop)
          (remove thread (event-loop-overtaken-waiters loop) :count 1))
    t))

(defun replace-poller (loop)
  "Set the poller of LOOP to a new poller, and wake the thread that waits with the former poller. If
no descriptors are free for a new poller, the threads share the former poller. Call this within
WITH-OVERTAKEN-WAITERS."
  (let* ((old (event-loop-poller loop))
         (new (handler-case (funcall (world-make-poller (event-loop-world loop)))
                (socket-error () nil))))
    (when new
      (setf (poller-interest new) (poller-interest old)
            (event-loop-poller loop) new
            (event-loop-blind loop) t)
      (funcall (poller-wake old) old))))

(defun overtake-sleeper (loop baton)
  "Do what OVERTAKE does, for a thread that waits for events."
  (let ((sleeper (event-loop-thread loop)))
    (with-overtaken-waiters (loop) (push sleeper (event-loop-overtaken-waiters loop)))
    (cond ((overtake loop baton)
           (with-overtaken-waiters (loop)
             (when (member sleeper (event-loop-overtaken-waiters loop)) (replace-poller loop)))
           t)
          (t (with-overtaken-waiters (loop) (forget-overtaken-waiter loop sleeper))
             nil))))

(defun leave-poller (loop poller)
  "Note that this thread, which was overtaken while it waited with POLLER for events of LOOP, has
stopped waiting. Return true if LOOP still has POLLER; otherwise close POLLER when no other thread
is about to wake LOOP with it."
  (multiple-value-bind (overtaken shared)
      (with-overtaken-waiters (loop)
        (values (forget-overtaken-waiter loop sb-thread:*current-thread*)
                (eq poller (event-loop-poller loop))))
    (when (and overtaken (not shared))
      (close-poller loop poller (no-waker-left-p (event-loop-inbox loop))))
    shared))

(defun close-poller (loop poller quiet)
  "Close POLLER, a poller of LOOP. QUIET is false if a thread that was stopped in the middle of a
POST may still wake LOOP with POLLER. In that case POLLER stays open. Otherwise its descriptors
might belong to other objects when that thread writes to them."
  (if quiet
      (funcall (poller-close poller) poller)
      (log-event :error :waker-does-not-return :loop loop)))

;;; Asking other threads to run a loop

(define-hot own-lending ((loop event-loop)) (or null baton)
  "Return the baton of LOOP, which this thread has lent while it runs user code, or nil if another
thread runs LOOP."
  (loop
    (let ((baton (event-loop-baton loop)))
      (sb-thread:barrier (:read))
      (cond ((not (in-event-loop-p loop)) (return nil))
            ((lent-p baton) (return baton))
            ;; the thread that takes the baton will be THREAD at once
            ((= +taking+ (baton-state baton)) (sb-ext:spin-loop-hint))
            (t (misuse "~A would wait for itself." loop))))))

(declaim (type (or null function) *around-wait*))
(defvar *around-wait* nil
  "Nil, or a function that is called for each wait of this thread; its argument is the wait, a
function. See CALL-RELEASING.")

(defun call-releasing (release take function)
  "Call FUNCTION and return its values. If FUNCTION calls PREPARE-TO-WAIT with a WAIT, RELEASE is
called before that wait; it releases resources for which other threads may wait. Afterwards, unless
WAIT was in vain, TAKE is called to take them again; TAKE may wait as well."
  (declare (type function release take function))
  (let* ((outer *around-wait*)
         (*around-wait* (lambda (wait)
                          (funcall release)
                          (let ((found (funcall (or outer #'funcall) wait)))
                            (when found
                              (let ((*around-wait* outer)) (funcall take)))
                            found))))
    (funcall function)))

(defun prepare-to-wait (&optional wait)
  "Prepare for this thread's sleep in user code: if the thread runs a loop, make a reserve thread
run that loop instead. Return false if no reserve thread can run it; then this thread must not
sleep. WAIT, if given, is a function that waits. It is called after the preparation, while the
resources of CALL-RELEASING are released, and its value, which is false if the wait was in vain, is
returned."
  (and (leave-loop)
       (or (null wait)
           (funcall (or *around-wait* #'funcall) wait))))

(defun leave-loop ()
  "Do what PREPARE-TO-WAIT does without a WAIT."
  (let* ((loop *event-loop*)
         (baton (and loop (own-lending loop))))
    (or (null baton)
        ;; a thread was asked to take the loop, and may not have got a processor yet
        (= baton (event-loop-asked loop))
        (and (request-takeover loop baton :refuse)
             (setf (event-loop-asked loop) baton)
             t))))

(defgeneric note-late (argument)
  (:documentation "Note that user code has lost the baton to the calling thread. ARGUMENT is the
argument of CALL-USER for that user code.")
  (:method (argument) (declare (ignore argument)) nil))

(defun request-takeover (loop baton if-busy)
  "Make a reserve thread of LOOP overtake the thread that has lent its BATON. IF-BUSY is as for
RUN-ON-RESERVE. Return true if a reserve thread will try to overtake it. The second value is the
function that the reserve thread will call."
  (let ((reserve (event-loop-reserve loop))
        (function (lambda ()
                    (with-taken-loop (loop (if (= +waiting+ (baton-state baton))
                                               (overtake-sleeper loop baton)
                                               (overtake loop baton)))
                      ;; from now on the runner is a reserve thread for which no thread waits
                      (setf (event-loop-overtaken loop) t)
                      (trace-event :loop :overtaken :loop loop)
                      (when (= +lent+ (baton-state baton)) ; otherwise it ran no user code
                        (note-late (event-loop-user loop)))
                      (funcall (event-loop-run loop) loop)))))
    (and reserve
         (values (run-on-reserve reserve function :if-busy if-busy :takeover t) function))))

(defun request-runner (loop)
  "Make a thread of LOOP's reserve run LOOP if no thread does. If necessary start a thread beyond
the limit of the reserve, because all its threads may be waiting for LOOP. Return true if a reserve
thread will try to run LOOP."
  (let ((reserve (event-loop-reserve loop)))
    (and reserve
         (run-on-reserve reserve
                         (lambda ()
                           (with-taken-loop (loop (take loop))
                             (trace-event :loop :taken :loop loop)
                             (funcall (event-loop-run loop) loop)))
                         :if-busy :exceed))))
