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
    clgrpc.loop::give-up hand-over retire clgrpc.loop::claim in-event-loop-p))

(defparameter *baton-stubs*
  '((clgrpc.loop::wake-watchdog () (ask-value :write :asleep nil))
    (section () ; what only the holder of the baton may do
     (let ((data (ask-value :enter)))
       (ask-value :leave nil (1+ data))))
    (user-code (then)
     ;; until something needs the loop
     (lend loop)
     (when (eq :lent (clgrpc.loop::claim loop))
       (section)
       (lend loop))
     (cond ((resume loop) (section) (funcall then loop))
           (t (assert (not (in-event-loop-p loop))))))
    (leave () (section) (hand-over loop))))

(defun baton-definitions ()
  (append (read-definitions "loop/baton.lisp" '#:clgrpc.loop)
          (read-definitions "loop/structure.lisp" '#:clgrpc.loop)))

(defun baton-word (state)
  (+ state (ash 5 3)))

(defun explore-batons (state thread programs check)
  "Explore PROGRAMS from a baton in STATE with THREAD."
  (explore (list (cons :baton (baton-word state)) (cons :thread thread) (cons :asleep nil)
                 (cons :inside nil) (cons :data 0) (cons :sections 0))
           (compile-programs (baton-definitions) *baton-functions* *baton-places* *baton-stubs*
                             programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Stuck: ~S ~S" memory done))
             (unless (= (place-value memory :data) (place-value memory :sections))
               (error "The loop was run by two at once: ~S" memory))
             (funcall check memory))))

(defun check-free (memory)
  (unless (and (= 0 (clgrpc.loop::baton-state (place-value memory :baton)))
               (null (place-value memory :thread)))
    (error "Nobody can take the loop any more: ~S" memory)))

(test baton-in-every-interleaving
  (flet ((check (state thread &rest programs)
           (let ((count (handler-case (explore-batons state thread programs #'check-free)
                          (error (error) (princ-to-string error)))))
             (is (integerp count) "~S: ~A" programs count))))
    (let ((runner '(progn (section) (user-code #'hand-over)))
          (quick-runner '(progn (lend loop) (when (resume loop) (leave))))
          (taker '(when (take loop) (leave)))
          (overtaker '(let ((seen (clgrpc.loop::event-loop-baton loop)))
                       (when (overtake loop seen) (leave))))
          (busy-overtaker '(let ((seen (clgrpc.loop::event-loop-baton loop)))
                            (when (overtake loop seen) (user-code #'hand-over)))))
      (check 0 nil taker taker taker)
      (check 1 0 runner overtaker)
      (check 1 0 runner busy-overtaker)
      (check 1 0 runner overtaker taker)
      (check 1 0 runner overtaker overtaker)
      (check 1 0 runner busy-overtaker taker)
      (check 1 0 quick-runner busy-overtaker overtaker))))
