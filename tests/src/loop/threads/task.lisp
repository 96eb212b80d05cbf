;;;; A loop's deferred work: its order and its turns, without losses. The test's thread makes the
;;;; turns.

(in-package #:clgrpc.tests.loop)

(test deferred-functions-are-called-in-order
  (with-still-loop (loop)
    (let ((ran '()))
      (flet ((note (argument) (push argument ran)))
        ;; the ring begins in its middle, and grows while it is wrapped around
        (dotimes (i 40) (defer loop #'note i))
        (make-turn-of loop)
        (loop for i from 40 below 1000 do (defer loop #'note i))
        (make-turn-of loop)
        (is (equal (loop for i below 1000 collect i) (reverse ran)))))))

(test few-deferred-functions-run-in-the-turn-of-those-that-defer-them
  "Functions that these defer in turn run in the next turn, and so do those of more than sixteen
functions together."
  (flet ((turns (times count)
           "The turns in which COUNT functions run that defer themselves TIMES times."
           (with-still-loop (loop)
             (let ((turns '()))
               (labels ((again (left)
                          (push (clgrpc.loop:event-loop-turns loop) turns)
                          (when (plusp left) (defer loop #'again (1- left)))))
                 (loop repeat count do (defer loop #'again times))
                 (loop repeat 6 do (make-turn-of loop)))
               (reverse turns)))))
    (is (equal '(1 1 2 2) (turns 3 1)))
    (is (equal (make-list 16 :initial-element 1) (turns 1 8)))
    (is (equal (append (make-list 9 :initial-element 1) (make-list 9 :initial-element 2))
               (turns 1 9)))))

(test slow-functions-that-others-defer-wait-for-the-next-turn
  "Finished output would wait for them: once one has taken 50 µs or longer, such functions wait for
the next turn, for twenty times as long, at most a second."
  (let ((now 1000))
    (with-still-loop (loop :clock (lambda () now))
      (let ((turns '()) (ns 0))
        (labels ((second-function (argument)
                   (declare (ignore argument))
                   (incf now ns)
                   (push (clgrpc.loop:event-loop-turns loop) turns))
                 (first-function (argument) (defer loop #'second-function argument)))
          (flet ((later (ns-of-second)
                   "How many turns after the first function the second runs."
                   (setf ns ns-of-second)
                   (let ((before (clgrpc.loop:event-loop-turns loop)))
                     (defer loop #'first-function nil)
                     (loop repeat 2 do (make-turn-of loop))
                     (- (first turns) before 1))))
            (is (= 0 (later 49999)))
            (is (= 0 (later 50000)))
            (flet ((wait-for (ns)
                     (is (= 1 (later 0)))
                     (incf now (1- ns))
                     (is (= 1 (later 0)))
                     (incf now 1)
                     (is (= 0 (later 0)))
                     (is (= 0 (later 0)))))
              (wait-for 1000000)
              (is (= 0 (later 100000)))
              (wait-for 2000000)
              (is (= 0 (later 100000000)))
              (wait-for 1000000000))))))))

(test errors-keep-no-other-task-from-its-turn
  (with-still-loop (loop)
    (with-logged (events)
      (let ((ran '()))
        (flet ((err (argument) (error 'mishap) argument)
               (note (argument) (push argument ran)))
          (defer loop #'err nil)
          (defer loop #'note :deferred)
          (post loop (lambda () (err nil)))
          (post loop (lambda () (note :posted)))
          (call-last loop #'err nil)
          (call-last loop #'note :last)
          (make-turn-of loop))
        (is (equal '(:deferred :posted :last) (reverse ran)))
        (is (equal '(:deferred-function-error :posted-function-error :last-function-error)
                   (mapcar #'second (events))))))))

(test functions-of-call-last-are-called-in-order
  (with-still-loop (loop)
    (let ((ran '()))
      (dotimes (i 100) (call-last loop (lambda (argument) (push argument ran)) i))
      (make-turn-of loop)
      (is (equal (loop for i below 100 collect i) (reverse ran)))
      (make-turn-of loop)
      (is (= 100 (length ran)) "Each is called once."))))

(test functions-of-call-before-flush-are-called-before-output-is-sent
  (with-still-loop (loop)
    (let ((ran '()))
      (flet ((note (what) (push what ran)))
        (call-before-flush loop #'note 1)
        (defer loop (lambda (argument)
                      (note argument)
                      (clgrpc.loop::flush-phase loop)
                      (call-before-flush loop #'note 3)
                      (note :flushed))
               2)
        (call-last loop (lambda (argument)
                          (note argument)
                          (call-before-flush loop #'note 5))
                   4)
        (make-turn-of loop)
        (is (equal '(2 1 :flushed 3 4) (reverse ran)))
        (make-turn-of loop)
        (is (eql 5 (first ran)) "What the end of a turn asks for is done in the next.")
        (is (= 6 (length ran)) "Each is called once.")))))

(defclass posted-item ()
  ((place :initarg :place :reader posted-place))) ; a list whose first element counts

(defmethod clgrpc.loop:run-posted ((item posted-item))
  (incf (first (posted-place item))))

(test what-is-posted-is-done-in-order
  (with-still-loop (loop)
    (let ((ran '()) (place (list 0)))
      (dotimes (i 10)
        (let ((i i)) (post loop (lambda () (push i ran)))))
      (is-true (post loop (make-instance 'posted-item :place place)))
      (make-turn-of loop)
      (is (equal '(0 1 2 3 4 5 6 7 8 9) (reverse ran)))
      (is (= 1 (first place)) "Objects and functions may be posted."))))

(test only-the-first-post-wakes-a-sleeping-loop
  (let ((wakes 0) (ran 0) (waiting nil))
    (with-still-loop (loop :note (lambda (what)
                                   (if (eq what :wake)
                                       (incf wakes)
                                       (when waiting (funcall (shiftf waiting nil))))))
      (flet ((post-some ()
               (loop repeat 3 do (post loop (lambda () (incf ran))))))
        (setf waiting #'post-some)
        (make-turn-of loop)
        (is (= 3 ran))
        (is (= 1 wakes))
        (defer loop #'identity nil)     ; so that the next turn does not sleep
        (setf waiting #'post-some))
      (make-turn-of loop)
      (is (= 6 ran))
      (is (= 1 wakes) "A loop that is awake needs no waking."))))

(test a-post-is-not-left-half-done
  "An interrupt of a thread that posts comes before or after the post: the loop is woken, and no
thread remains marked as its waker."
  (let ((inside (sb-thread:make-semaphore)) (released nil) (woken nil) (thread nil))
    (with-still-loop (loop :note (lambda (what)
                                   (cond ((not (eq what :wake)))
                                         ((eq sb-thread:*current-thread* thread)
                                          (sb-thread:signal-semaphore inside)
                                          (loop until released)
                                          (setf woken t)))))
      (doze-inbox (clgrpc.loop::event-loop-inbox loop))
      (setf thread (in-thread (catch 'out
                                (loop until thread)
                                (post loop (constantly nil))
                                (loop (sb-thread:thread-yield)))))
      (is-true (await inside))
      (sb-thread:interrupt-thread thread (lambda () (throw 'out nil)))
      (loop repeat 100 do (sb-thread:thread-yield))
      (setf released t)
      (sb-thread:join-thread thread)
      (is-true woken)
      (is (zerop (clgrpc.loop::inbox-wakers (clgrpc.loop::event-loop-inbox loop)))))))

(test a-stopped-loop-takes-no-posts
  (let ((loop (make-event-loop :name "stopped" :poller (still-poller #'identity))))
    (stop-event-loop loop)
    (is-true (join-event-loop loop))
    (is-false (post loop (lambda () (error 'mishap))))))

(test each-connection-that-has-gone-is-told
  (with-still-loop (loop)
    (let ((told 0) (connections '()))
      (let ((note (lambda (gone-of) (when (eq gone-of loop) (incf told)))))
        (loop repeat 2 do (call-after-closing loop note)))
      (flet ((connect (descriptor)
               (push (memory-connection loop descriptor #'takes-all) connections)))
        (defer loop #'connect 1000001)
        (defer loop #'connect 1000002))
      (make-turn-of loop)
      (is (= 0 told))
      (defer loop (fn (_argument)
                    (dolist (connection connections) (close-connection connection :abort t)))
        nil)
      (make-turn-of loop)
      (is (= 2 told) "the function is called once for each connection")
      (make-turn-of loop)
      (is (= 2 told)))))
