;;;; The baton: its steps in every interleaving, and the real thing between threads.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

;;; Every interleaving

(defparameter *baton-places*
  '((clgrpc.loop::event-loop-baton . :baton)
    (clgrpc.loop::event-loop-thread . :thread)
    (clgrpc.loop::**watchdog-asleep** . :asleep)))

(defparameter *baton-functions*
  '(clgrpc.loop::baton-state clgrpc.loop::next-baton clgrpc.loop::seize take overtake lend resume
    clgrpc.loop::give-up hand-over retire clgrpc.loop::claim in-event-loop-p
    clgrpc.loop::own-lending))

(defparameter *baton-stubs*
  '((clgrpc.loop::wake-watchdog () (ask-value :write :asleep nil))
    (section () ; what only the holder of the baton may do
     (let ((data (ask-value :enter)))
       (ask-value :leave nil (1+ data))))
    (user-code (then)
     ;; until something needs the loop
     (lend loop)
     (ecase (clgrpc.loop::claim loop)
       (:lent (section) (lend loop))
       (:held (section))                ; which cannot be, and would be seen
       ((nil)))
     (cond ((resume loop) (section) (funcall then loop))
           (t (assert (not (in-event-loop-p loop))))))
    (misuse (&rest arguments) (error "Misuse: ~S" arguments))
    (leave () (section) (hand-over loop))))

(defun baton-definitions ()
  (append (read-definitions "loop/baton.lisp" '#:clgrpc.loop)
          (read-definitions "loop/structure.lisp" '#:clgrpc.loop)))

(defun without (form name definitions)
  "DEFINITIONS without FORM in that of NAME."
  (labels ((cut (tree)
             (if (consp tree)
                 (loop for part in tree
                       unless (equal part form) collect (cut part))
                 tree)))
    (loop for definition in definitions
          for this = (equal name (first (plain-definition definition)))
          for rest = (if this (cut definition) definition)
          do (assert (not (and this (equal rest definition))) () "~S is not in ~S" form name)
          collect rest)))

(defun baton-word (state)
  (+ state (ash 5 3)))

(defun explore-batons (state thread programs check &optional (definitions (baton-definitions)))
  "Explore PROGRAMS from a baton in STATE with THREAD."
  (explore (list (cons :baton (baton-word state)) (cons :thread thread) (cons :asleep nil)
                 (cons :inside nil) (cons :data 0) (cons :sections 0))
           (compile-programs definitions *baton-functions* *baton-places* *baton-stubs* programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Stuck: ~S ~S" memory done))
             (unless (= (place-value memory :data) (place-value memory :sections))
               (error "The loop was run by two at once: ~S" memory))
             (funcall check memory))))

(defun ended-in-p (state memory)
  (and (= state (clgrpc.loop::baton-state (place-value memory :baton)))
       (null (place-value memory :thread))))

(defun check-free (memory)
  (unless (ended-in-p 0 memory) (error "Nobody can take the loop any more: ~S" memory)))

(defun check-retired (memory)
  (unless (ended-in-p 4 memory) (error "The loop is not at its end: ~S" memory)))

(defparameter *baton-programs*
  '((:runner . (progn (section) (user-code #'hand-over)))
    (:quick-runner . (progn (lend loop) (when (resume loop) (leave))))
    ;; who saw the first lending must not take the second
    (:steady-runner . (progn (lend loop)
                             (when (resume loop)
                               (section)
                               (lend loop)
                               (when (resume loop) (leave)))))
    ;; overtaken, it takes the loop from within the same user code, as a nested call does
    (:nested-runner . (progn (lend loop)
                             (cond ((in-event-loop-p loop) (when (resume loop) (leave)))
                                   (t (when (take loop) (leave))
                                      (assert (not (resume loop)))))))
    ;; about to wait, it is overtaken at any moment
    (:waiter . (progn (lend loop)
                      (unless (clgrpc.loop::own-lending loop)
                        (assert (not (in-event-loop-p loop))))
                      (when (resume loop) (leave))))
    (:retirer . (progn (section) (retire loop)))
    (:user-of-retirer . (progn (section) (user-code #'retire)))
    (:taker . (when (take loop) (leave)))
    (:overtaker . (let ((seen (clgrpc.loop::event-loop-baton loop)))
                    (when (overtake loop seen) (leave))))
    (:busy-overtaker . (let ((seen (clgrpc.loop::event-loop-baton loop)))
                         (when (overtake loop seen) (user-code #'hand-over))))
    (:retiring-overtaker . (let ((seen (clgrpc.loop::event-loop-baton loop)))
                             (when (overtake loop seen) (user-code #'retire))))))

(defun baton-programs (names)
  (loop for name in names collect (cdr (assoc name *baton-programs*))))

(defun complaint-of (function)
  "What FUNCTION, which explores, complains of; NIL if of nothing."
  (handler-case (progn (funcall function) nil)
    (error (error) (princ-to-string error))))

(test baton-in-every-interleaving
  (flet ((check (state thread check &rest names)
           (let ((complaint (complaint-of
                             (lambda ()
                               (explore-batons state thread (baton-programs names) check)))))
             (is (null complaint) "~S: ~A" names complaint))))
    (check 0 nil #'check-free :taker :taker :taker)
    (loop for runner in '(:runner :quick-runner :steady-runner :nested-runner :waiter)
          do (check 1 0 #'check-free runner :overtaker)
             (check 1 0 #'check-free runner :busy-overtaker)
             (check 1 0 #'check-free runner :overtaker :taker)
             (check 1 0 #'check-free runner :overtaker :overtaker)
             (check 1 0 #'check-free runner :busy-overtaker :taker))
    (check 1 0 #'check-free :quick-runner :busy-overtaker :overtaker)
    (check 1 0 #'check-retired :retirer :taker :overtaker)
    (check 1 0 #'check-retired :user-of-retirer :taker)
    (check 1 0 (lambda (memory)
                 (unless (or (ended-in-p 0 memory) (ended-in-p 4 memory))
                   (error "Neither free nor retired: ~S" memory)))
           :runner :retiring-overtaker :taker)))

(test interleavings-see-what-is-wrong
  "Without any of what makes the baton sound, some interleaving fails."
  (flet ((check (name form &rest names)
           (is-true (complaint-of
                     (lambda ()
                       (explore-batons 1 0 (baton-programs names) #'check-free
                                       (without form name (baton-definitions)))))
                    "~S of ~S is not missed" form name)))
    (check 'clgrpc.loop::seize '(sb-thread:barrier (:write)) :runner :overtaker)
    (check 'clgrpc.loop::own-lending
           '((= clgrpc.loop::+taking+ (clgrpc.loop::baton-state clgrpc.loop::baton))
             (sb-ext:spin-loop-hint))
           :waiter :overtaker)
    (check 'clgrpc.loop::give-up '(sb-thread:barrier (:write)) :runner :overtaker :taker)
    (check 'lend '(sb-thread:barrier (:write)) :runner :overtaker)
    (check 'overtake '(clgrpc.loop::seize loop clgrpc.loop::baton) :runner :overtaker)
    (check 'resume '((not (in-event-loop-p loop)) (return nil)) :runner :busy-overtaker)))

;;; Nobody is left waiting: a thread gives a caller-driven loop up while another begins to wait

(defparameter *driving-places*
  (append '((clgrpc.loop::driving-calls . :calls)
            (clgrpc.loop::driving-waiters . :waiters)
            (clgrpc.loop::driving-candidate . :candidate)
            (clgrpc.loop::event-loop-driving . :driving)
            (clgrpc.loop::driving-served . :ignored)
            (clgrpc.loop::driving-owner . :ignored)
            (clgrpc.loop::driving-yielding . :ignored)
            (clgrpc.loop::event-loop-blind . :never)
            (clgrpc.loop::event-loop-stopping . :never)
            (clgrpc.loop::event-loop-inbox . :ignored)
            (clgrpc.loop::event-loop-poller . :ignored)
            (clgrpc.base::inbox-asleep . :dozing)
            (clgrpc.base::inbox-wakers . :wakers))
          *baton-places*))

(defparameter *driving-stubs*
  (append '((clgrpc.loop::request-runner (loop)
             (declare (ignore loop))
             (ask-value :write :requested t)
             t)
            (clgrpc.loop::driving-of (loop) (declare (ignore loop)) nil)
            (clgrpc.loop::work-left-p (loop) (declare (ignore loop)) nil)
            (clgrpc.loop::timer-before-look-p (loop) (declare (ignore loop)) nil)
            (clgrpc.loop::poller-wake (poller)
             (declare (ignore poller))
             (constantly nil))          ; nobody waits for events any more
            ;; the list of items is a count of them here
            (inbox-empty-p (inbox) (declare (ignore inbox)) (= 0 (ask-value :read :items)))
            (push-inbox (inbox item)
             (declare (ignore item))
             (ask-value :add :items 1)
             (and (= 1 (ask-value :read :dozing)) (clgrpc.base::become-waker inbox)))
            (await-request () (ask-value :await :requested #'identity)))
          *baton-stubs*))

(defun explore-driving (programs &optional (definitions (driving-definitions)))
  "Explore PROGRAMS from a loop that thread 0 drives, with one call under way, another's."
  (explore (append (list (cons :baton (baton-word 1)) (cons :thread 0))
                   (list (cons :calls 1))
                   (loop for place in '(:waiters :dozing :wakers :items :data :sections)
                         collect (cons place 0))
                   (list (cons :driving t))
                   (loop for place in '(:ignored :never :requested :answered :asleep :inside
                                        :candidate :rung)
                         collect (cons place nil)))
           (compile-programs definitions
                             (append *baton-functions*
                                     '(clgrpc.loop::call-served clgrpc.loop::wait-as-waiter
                                       clgrpc.loop::step-back
                                       clgrpc.loop::request-runner-if-free
                                       clgrpc.loop::waited-for-p clgrpc.loop::wake-loop post
                                       confirm-wake doze-inbox rouse-inbox
                                       clgrpc.base::become-waker))
                             *driving-places* *driving-stubs* programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Somebody waits forever: ~S" memory)))))

(defun driving-definitions ()
  (append (baton-definitions)
          (read-definitions "loop/driving.lisp" '#:clgrpc.loop)
          (read-definitions "loop/task.lisp" '#:clgrpc.loop)
          (read-definitions "base/queue.lisp" '#:clgrpc.base)))

(defparameter *driver* '(progn (section) (clgrpc.loop::step-back loop)))

(defparameter *waiter*
  '(clgrpc.loop::call-served loop (lambda () (ask-value :await :answered #'identity)) nil))

(defparameter *asking-waiter*
  ;; content when a reserve thread has been asked
  '(clgrpc.loop::call-served loop (lambda () (await-request)) nil))

(defun ring-candidate () (ask-value :write :rung t))

(defparameter *candidate*
  ;; woken, it runs the loop if nobody does, and so answers itself and the other
  '(progn (loop until (ask-value :read :answered)
                do (clgrpc.loop::call-served loop (lambda () (ask-value :await :rung #'identity))
                                             'ring-candidate)
                   (ask-value :write :rung nil)
                   (ask-value :barrier :memory)
                   (when (take loop)
                     (ask-value :write :answered t)
                     (hand-over loop)))
          (ask-value :write :requested t))) ; the reserve thread may go

(defparameter *last-candidate*
  ;; woken, it has what it waited for, and goes
  '(progn (clgrpc.loop::call-served loop (lambda () (ask-value :await :rung #'identity))
                                    'ring-candidate)
          (ask-value :write :answered t)
          (ask-value :write :requested t)))

(defparameter *leaving-candidate*
  ;; it may have been woken before, and go at any time
  '(clgrpc.loop::call-served loop (lambda () nil) 'ring-candidate))

(defparameter *poster* '(progn (post loop 'item) (ask-value :await :answered #'identity)))

(defparameter *reserve-thread*
  ;; comes when it is asked, and again, since who asked may have been too early
  '(loop until (ask-value :read :answered)
         do (await-request)
            (ask-value :write :requested nil)
            (ask-value :barrier :memory)
            (when (take loop)
              (ask-value :write :answered t)
              (ask-value :barrier :memory)
              (ask-value :write :rung t)
              (hand-over loop))))

(test nobody-is-left-waiting
  "Who begins to wait, or posts, while the driver steps back has somebody come."
  (loop for others in (list (list *waiter*) (list *poster*) (list *candidate*)
                            (list *last-candidate*))
        do (let ((complaint (complaint-of
                             (lambda ()
                               (explore-driving (list* *driver* *reserve-thread* others))))))
             (is (null complaint) "~S: ~A" others complaint)))
  (is (null (complaint-of
             (lambda ()
               (explore-driving (list *driver* *leaving-candidate* *asking-waiter*))))))
  (flet ((check (name form &rest others)
           (is-true (complaint-of
                     (lambda ()
                       (explore-driving (list* *driver* others)
                                         (without form name (driving-definitions)))))
                    "~S of ~S is not missed" form name)))
    (check 'clgrpc.loop::step-back '(sb-thread:barrier (:memory)) *waiter* *reserve-thread*)
    (check 'clgrpc.loop::step-back '(t (clgrpc.loop::request-runner loop))
           *waiter* *reserve-thread*)
    (check 'clgrpc.loop::wait-as-waiter '(when (clgrpc.loop::waited-for-p clgrpc.loop::driving)
                                          (clgrpc.loop::request-runner-if-free loop))
           *leaving-candidate* *asking-waiter*)
    (check 'clgrpc.loop::step-back '(not (inbox-empty-p (clgrpc.loop::event-loop-inbox loop)))
           *poster* *reserve-thread*)))
