;;;; The baton: its steps in every interleaving, and the real baton between threads.

(in-package #:clgrpc.tests.loop)

;;; Every interleaving

(defparameter *baton-places*
  '((clgrpc.loop::event-loop-baton . :baton)
    (clgrpc.loop::event-loop-thread . :thread)
    (clgrpc.loop::**watchdog-asleep** . :asleep)))

(defparameter *baton-functions*
  '(clgrpc.loop::baton-state clgrpc.loop::lent-p clgrpc.loop::next-baton clgrpc.loop::seize take
    overtake lend clgrpc.loop::lend-to-wait resume
    clgrpc.loop::give-up hand-over retire clgrpc.loop::claim in-event-loop-p
    clgrpc.loop::own-lending))

(defparameter *baton-stubs*
  '((clgrpc.loop::wake-watchdog () (ask-value :write :asleep nil))
    (clgrpc.loop::count-lent (loop) (progn loop t))
    (clgrpc.loop::count-lost (loop) (progn loop t))
    (section () ; what only the holder of the baton may do
     (let ((data (ask-value :enter)))
       (ask-value :leave nil (1+ data))))
    (user-code (then)
     ;; until something needs the loop
     (lend loop)
     (ecase (clgrpc.loop::claim loop)
       (:lent (section) (lend loop))
       (:held (section))                ; this never happens; if it did, the test would fail
       ((nil)))
     (cond ((resume loop) (section) (funcall then loop))
           (t (assert (not (in-event-loop-p loop))))))
    (misuse (&rest arguments) (error "Misuse: ~S" arguments))
    (leave () (section) (hand-over loop))))

(defun baton-definitions ()
  (append (read-definitions "baton")
          (read-definitions "loop-structure")))

(defun without (form name definitions)
  "DEFINITIONS without FORM in the definition of NAME."
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
    ;; a thread that saw the first lending must not take the second
    (:steady-runner . (progn (lend loop)
                             (when (resume loop)
                               (section)
                               (lend loop)
                               (when (resume loop) (leave)))))
    ;; the loop waits twice; a thread that saw the first wait may overtake the second
    (:sleeper . (progn (clgrpc.loop::lend-to-wait loop)
                       (when (resume loop)
                         (section)
                         (clgrpc.loop::lend-to-wait loop)
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
  "The text of the error that FUNCTION signals while it explores, or nil without an error."
  (handler-case (progn (funcall function) nil)
    (error (error) (princ-to-string error))))

(test baton-in-every-interleaving
  (flet ((check (state thread check &rest names)
           (let ((complaint (complaint-of
                             (lambda ()
                               (explore-batons state thread (baton-programs names) check)))))
             (is (null complaint) "~S: ~A" names complaint))))
    (check 0 nil #'check-free :taker :taker :taker)
    (loop for runner in '(:runner :quick-runner :steady-runner :sleeper :nested-runner :waiter)
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
  "If any one part of the baton's protocol is removed, some interleaving fails."
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
    (check 'clgrpc.loop::lend-to-wait '(sb-thread:barrier (:write)) :sleeper :overtaker)
    (check 'overtake '(clgrpc.loop::seize loop clgrpc.loop::baton) :runner :overtaker)
    (check 'resume '((not (in-event-loop-p loop)) (return nil)) :runner :busy-overtaker)))

(test pollers-that-a-stopped-thread-may-use-stay-open
  (with-still-loop (loop)
    (with-logged (events)
      (clgrpc.loop::close-poller loop (event-loop-poller loop) nil)
      (is (equal (list (list :error :waker-does-not-return :loop loop)) (events))))))

(test a-loop-is-offered-once-a-lending
  "A thread that is about to wait again requests no second take-over, unless the first was refused."
  (let ((loop (make-event-loop)) (batons (list 9 9 9 10)) (outcomes (list nil t t)))
    (with-replaced (('clgrpc.loop::own-lending (lambda (function other)
                                                 (if (eq loop other)
                                                     (pop batons)
                                                     (funcall function other))))
                    ('clgrpc.loop::request-takeover (lambda (function other &rest more)
                                                      (if (eq loop other)
                                                          (pop outcomes)
                                                          (apply function other more)))))
      (let ((clgrpc.loop::*event-loop* loop))
        (is (equal '(nil t t t) (loop repeat 4 collect (and (prepare-to-wait) t)))))
      (is (null outcomes)))
    (stop-event-loop loop)))
