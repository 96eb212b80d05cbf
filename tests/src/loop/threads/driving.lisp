;;;; Driving: no waiter is forgotten, in every interleaving of a thread that gives up a
;;;; caller-driven loop with a thread that begins to wait, posts, or is the candidate. The callers'
;;;; view is in tests/whole/promise/driving.lisp.

(in-package #:clgrpc.tests.loop)

(defparameter *driving-places*
  (append '((clgrpc.loop::driving-calls . :calls)
            (clgrpc.loop::driving-waiters . :waiters)
            (clgrpc.loop::driving-candidate . :candidate)
            (clgrpc.loop::event-loop-driving . :driving)
            (clgrpc.loop::driving-served . :ignored)
            (clgrpc.loop::driving-owner . :ignored)
            (clgrpc.loop::driving-yielding . :ignored)
            (clgrpc.loop::event-loop-blind . :never)
            (clgrpc.loop:event-loop-stopping . :never)
            (clgrpc.loop::event-loop-inbox . :ignored)
            (clgrpc.loop:event-loop-poller . :ignored)
            (clgrpc.loop::inbox-asleep . :dozing)
            (clgrpc.loop::inbox-wakers . :wakers))
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
             (and (= 1 (ask-value :read :dozing)) (become-waker inbox)))
            (await-request () (ask-value :await :requested #'identity)))
          *baton-stubs*))

(defun explore-driving (programs &optional (definitions (driving-definitions)))
  "Explore PROGRAMS from a loop that thread 0 drives, with one call of another under way."
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
                                     '(clgrpc.loop:call-served clgrpc.loop::wait-as-waiter
                                       clgrpc.loop::step-back
                                       clgrpc.loop::request-runner-if-free
                                       clgrpc.loop::waited-for-p clgrpc.loop::wake-loop post
                                       confirm-wake doze-inbox rouse-inbox
                                       become-waker))
                             *driving-places* *driving-stubs* programs)
           (lambda (memory done)
             (unless (every #'identity done) (error "Somebody waits forever: ~S" memory)))))

(defun driving-definitions ()
  (append (baton-definitions)
          (read-definitions "driving")
          (read-definitions "task")
          (read-definitions "inbox")))

(defparameter *driver* '(progn (section) (clgrpc.loop::step-back loop)))

(defparameter *waiter*
  '(clgrpc.loop:call-served loop (lambda () (ask-value :await :answered #'identity)) nil))

(defparameter *asking-waiter*
  ;; waits until a reserve thread is asked
  '(clgrpc.loop:call-served loop (lambda () (await-request)) nil))

(defun ring-candidate () (ask-value :write :rung t))

(defparameter *candidate*
  ;; if woken, it runs the loop unless another does, and so answers both
  '(progn (loop until (ask-value :read :answered)
                do (clgrpc.loop:call-served loop (lambda () (ask-value :await :rung #'identity))
                                            'ring-candidate)
                   (ask-value :write :rung nil)
                   (ask-value :barrier :memory)
                   (when (take loop)
                     (ask-value :write :answered t)
                     (hand-over loop)))
          (ask-value :write :requested t))) ; the reserve thread may go

(defparameter *last-candidate*
  ;; if woken, it has its event, and leaves
  '(progn (clgrpc.loop:call-served loop (lambda () (ask-value :await :rung #'identity))
                                   'ring-candidate)
          (ask-value :write :answered t)
          (ask-value :write :requested t)))

(defparameter *leaving-candidate*
  ;; it may have been woken before, and may leave at any time
  '(clgrpc.loop:call-served loop (lambda () nil) 'ring-candidate))

(defparameter *poster* '(progn (post loop 'item) (ask-value :await :answered #'identity)))

(defparameter *reserve-thread*
  ;; comes whenever it is asked: a request may have been too early
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
  "If a thread begins to wait, or posts, while the driver steps back, some thread takes the loop."
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
    ;; a candidate that has left is woken instead of a waiting one
    (check 'clgrpc.loop::wait-as-waiter
           '(when clgrpc.loop::candidate
             (compare-and-swap (clgrpc.loop::driving-candidate clgrpc.loop::driving)
              clgrpc.loop::candidate nil))
           *leaving-candidate* *asking-waiter*)
    (check 'clgrpc.loop::step-back '(not (inbox-empty-p (clgrpc.loop::event-loop-inbox loop)))
           *poster* *reserve-thread*)))
