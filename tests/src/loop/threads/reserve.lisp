;;;; Reserve threads: none before there is work, never too many, a bounded queue, none after idling.

(in-package #:clgrpc.tests.loop)

(defun await-thread-count (reserve count)
  "Wait until RESERVE has COUNT threads."
  (let ((end (+ (monotonic-ns) (seconds-ns *patience-seconds*))))
    (sb-thread:with-mutex ((clgrpc.loop::reserve-lock reserve))
      (loop until (= count (reserve-thread-count reserve))
            always (clgrpc.loop:await-notice (clgrpc.loop::reserve-ended reserve)
                                             (clgrpc.loop::reserve-lock reserve) end)))))

(test reserve-is-bounded
  (let ((reserve (make-reserve :threads 3 :queue 2 :idle-seconds 30))
        (started (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore))
        (ended (sb-thread:make-semaphore)))
    (is (= 0 (reserve-thread-count reserve)) "there is no thread before there is work")
    (flet ((block-a-thread ()
             (run-on-reserve reserve (lambda ()
                                       (sb-thread:signal-semaphore started)
                                       (await release)
                                       (sb-thread:signal-semaphore ended)))))
      (is (equal '(t t t t t nil nil) (loop repeat 7 collect (and (block-a-thread) t))))
      (is-true (await started 3))
      (is (= 3 (reserve-thread-count reserve)))
      (is (search "3 of 3 threads, 2 waiting" (princ-to-string reserve)))
      (sb-thread:signal-semaphore release 5)
      (is-true (await ended 5))
      (is-true (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore ended))))
      (is-true (await ended)))
    (is-true (close-reserve reserve 10))
    (is (= 0 (reserve-thread-count reserve)))
    (is-false (run-on-reserve reserve #'list))
    (is-true (close-reserve reserve 0))))

(test reserve-thread-is-used-again
  (let ((reserve (make-reserve :threads 8)) (done (sb-thread:make-semaphore)) (threads '()))
    (dotimes (i 20)
      (run-on-reserve reserve (lambda ()
                                (pushnew sb-thread:*current-thread* threads)
                                (sb-thread:signal-semaphore done)))
      (is-true (await done))
      ;; until it waits for the next
      (loop until (clgrpc.loop::reserve-idle reserve) do (sb-thread:thread-yield)))
    (is (= 1 (length threads)))
    (is-true (close-reserve reserve 10))))

(test idle-reserve-threads-end
  (let ((reserve (make-reserve :threads 4 :idle-seconds 0.05)) (done (sb-thread:make-semaphore)))
    (dotimes (i 4) (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore done))))
    (is-true (await done 4))
    (is-true (await-thread-count reserve 0))
    (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore done)))
    (is-true (await done) "and threads start again")
    (is-true (close-reserve reserve 10))))

(test a-reserve-that-is-asked-by-interrupted-threads-counts-right
  "A thread that is unwound as it requests a reserve thread has requested one or not."
  (let ((reserve (make-reserve :threads 4 :idle-seconds 0)))
    (support:interrupt-again-and-again (lambda () (run-on-reserve reserve #'list)) 300)
    (is-true (close-reserve reserve 10))
    (is (= 0 (reserve-thread-count reserve)))
    (is (= 0 (clgrpc.loop::reserve-busy reserve)))))

(test a-held-thread-is-given-up-though-functions-unwind
  "A thread is held, and not busy, until its function USE is called; if this unwinds, the next
waiting function gets the thread. A function that unwinds before holds nothing."
  (with-logged (events)
    (let* ((reserve (make-reserve :threads 1 :idle-seconds 30))
           (quota (make-quota :parent (clgrpc.loop::reserve-root reserve)))
           (ran (sb-thread:make-semaphore))
           (give-up nil))
      (flet ((idle-p ()
               (support:wait-until (lambda ()
                                     (and (clgrpc.loop::reserve-idle reserve)
                                          (zerop (clgrpc.loop::reserve-busy reserve))))))
             (ask () (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore ran))
                                     :if-busy :insist :quota quota)))
        (is-true (clgrpc.loop:run-holding reserve quota
                                          (fn (_function) (error 'mishap))))
        (is-true (idle-p))
        (is (zerop (quota-running quota)))
        (is-true (clgrpc.loop:run-holding reserve quota
                                          (lambda (function)
                                            (setf give-up function)
                                            (sb-thread:signal-semaphore ran))))
        (is-true (await ran))
        (is-true (idle-p))
        (is (= 1 (quota-running quota)))
        (is (eq :queued (ask)))
        (catch 'left (funcall give-up (lambda () (throw 'left nil))))
        (is-true (await ran))
        (is-true (idle-p))
        (is (zerop (quota-running quota))))
      (is-true (close-reserve reserve 10)))
    (is (equal '(:reserve-function-error) (mapcar #'second (events))))))

(defun world-without-threads (fails-p)
  "A world in which no thread can be made while FAILS-P, a function, returns true."
  (make-world :clock #'monotonic-ns :network (clgrpc.loop::world-network *world*)
              :start-thread (lambda (function name)
                              (if (funcall fails-p)
                                  (error "There are no more threads.")
                                  (sb-thread:make-thread function :name name)))))

(test a-thread-that-cannot-be-made-is-not-counted
  "Then the function is refused, and the thread's place is free again."
  (with-logged (events)
    (let* ((fails t)
           (ran (sb-thread:make-semaphore))
           (*world* (world-without-threads (lambda () fails)))
           (reserve (make-reserve :threads 1 :idle-seconds 30)))
      (is-false (run-on-reserve reserve #'list))
      (is (= 0 (reserve-thread-count reserve)))
      (is (= 0 (clgrpc.loop::reserve-busy reserve)))
      (setf fails nil)
      (is (eq t (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore ran)))))
      (is-true (await ran))
      (is-true (close-reserve reserve 10)))
    (is (equal '(:no-reserve-thread) (mapcar #'second (events))))))

(test a-function-that-waits-is-kept-if-no-thread-can-be-made
  "The last thread is ended by force and the system makes no other: the waiting function runs after
the next one."
  (with-logged (events)
    (let* ((fails nil)
           (begun (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore))
           (ran (sb-thread:make-semaphore))
           (*world* (world-without-threads (lambda () fails)))
           (reserve (make-reserve :threads 1 :idle-seconds 30)))
      (flet ((try (function) (run-on-reserve reserve function)))
        (is (eq t (try (lambda ()
                         (sb-thread:signal-semaphore begun)
                         (await release)
                         (sb-thread:abort-thread)))))
        (is-true (await begun))
        (is (eq :queued (try (lambda () (sb-thread:signal-semaphore ran)))))
        (setf fails t)
        (sb-thread:signal-semaphore release)
        (eventually (and (events)
                         (= 0 (reserve-thread-count reserve))
                         (= 1 (clgrpc.loop::quota-waiting (clgrpc.loop::reserve-root reserve)))))
        (setf fails nil)
        (is-true (try #'list))
        (is-true (await ran))
        (is-true (close-reserve reserve 10))))
    (is (equal '(:no-reserve-thread) (mapcar #'second (events))))))

(test reserve-survives-errors
  (with-logged (events)
    (let ((reserve (make-reserve :threads 1)) (done (sb-thread:make-semaphore)))
      (run-on-reserve reserve (lambda () (error "broken")))
      (run-on-reserve reserve (lambda () (sb-thread:signal-semaphore done)))
      (is-true (await done))
      (is-true (close-reserve reserve 10)))
    (is (equal '(:reserve-function-error) (mapcar #'second (events))))))

(test reserve-that-does-not-end
  (let ((reserve (make-reserve :threads 1)) (release (sb-thread:make-semaphore)) (ran nil))
    (run-on-reserve reserve (lambda () (await release)))
    (run-on-reserve reserve (lambda () (setf ran t)))
    (is-false (close-reserve reserve 0.02))
    (sb-thread:signal-semaphore release)
    (is-true (close-reserve reserve 10))
    (is-true ran "an accepted function is run")))

(test reserve-with-many-producers
  (let* ((reserve (make-reserve :threads 4 :queue 1000000)) (done (sb-thread:make-semaphore)))
    (flet ((produce ()
             (loop repeat 2000
                   always (run-on-reserve reserve
                                          (lambda () (sb-thread:signal-semaphore done))))))
      (is (every #'sb-thread:join-thread
                 (loop repeat 3 collect (sb-thread:make-thread #'produce)))))
    (is-true (await done 6000))
    (is (>= 4 (reserve-thread-count reserve)))
    (is-true (close-reserve reserve 10))))

(defparameter *exit-with-a-loop* "
  (let ((event-loop (clgrpc.loop:make-event-loop :reserve (clgrpc.loop:make-reserve)))
        (runs (sb-thread:make-semaphore)))
    (clgrpc.loop:launch-event-loop event-loop)
    (clgrpc.loop:post event-loop (lambda () (sb-thread:signal-semaphore runs)))
    (sb-thread:wait-on-semaphore runs)
    (sb-ext:exit :code 7))")

(defparameter *exit-with-a-function-that-waits* "
  (let ((reserve (clgrpc.loop:make-reserve :threads 1))
        (runs (sb-thread:make-semaphore)))
    (loop repeat 2
          do (clgrpc.loop:run-on-reserve reserve (lambda ()
                                                   (sb-thread:signal-semaphore runs)
                                                   (sleep 1000))))
    (sb-thread:wait-on-semaphore runs)
    (sb-ext:exit :code 7))")

(defun exit-code-of (program)
  "The exit code of another process, which loads clgrpc/loop and evaluates the text PROGRAM."
  (let ((load-file (asdf:system-relative-pathname "clgrpc" "scripts/load.lisp")))
    (nth-value 2 (uiop:run-program
                  (list sb-ext:*runtime-pathname* "--noinform" "--disable-ldb"
                        "--non-interactive" "--no-sysinit" "--no-userinit"
                        "--load" (uiop:native-namestring load-file)
                        "--eval" "(clgrpc.scripts:load-strictly \"clgrpc/loop\")"
                        "--eval" program)
                  :ignore-error-status t))))

(test process-ends-with-its-loops
  "A process that exits while a loop runs, or while a function waits for a thread, ends at once: a
thread that unwinds starts no other."
  (dolist (program (list *exit-with-a-loop* *exit-with-a-function-that-waits*))
    (let ((start (monotonic-ns)))
      (is (= 7 (exit-code-of program)))
      (is (< (- (monotonic-ns) start) (seconds-ns 30))))))

(defparameter *exhaust-stacks* "
  (labels ((dig (n) (1+ (dig (1+ n))))
           (dig-and-go-on () (handler-case (dig 0) (storage-condition () nil)))
           (await-end (reserve)
             (loop until (zerop (clgrpc.loop:reserve-thread-count reserve))
                   do (sb-thread:thread-yield)))
           (exhaust-reserve (function)
             (let ((reserve (clgrpc.loop:make-reserve :idle-seconds 0.01))
                   (tried (sb-thread:make-semaphore)))
               (clgrpc.loop:run-on-reserve reserve
                                           (lambda ()
                                             (unwind-protect (funcall function)
                                               (sb-thread:signal-semaphore tried))))
               (sb-thread:wait-on-semaphore tried)
               (await-end reserve)
               (clgrpc.loop:close-reserve reserve 10)))
           (exhaust-loop (function)
             (let* ((reserve (clgrpc.loop:make-reserve))
                    (loop (clgrpc.loop:make-event-loop :reserve reserve)))
               (clgrpc.loop:launch-event-loop loop)
               (clgrpc.loop:post loop function)
               (clgrpc.loop:stop-event-loop loop)
               (clgrpc.loop:join-event-loop loop)
               (clgrpc.loop:close-reserve reserve 10))))
    (dotimes (i 12)
      (exhaust-reserve (lambda () (dig 0)))
      (exhaust-reserve #'dig-and-go-on)
      (exhaust-reserve (lambda () (dig-and-go-on) (sb-thread:abort-thread)))
      (exhaust-loop (lambda () (dig 0)))
      (exhaust-loop #'dig-and-go-on))
    (sb-ext:exit :code 7 :abort t))")

(test stacks-are-exhausted-again-and-again
  "Threads exhaust their stacks and end: SBCL gives the stacks to other threads, which may exhaust
them as well."
  (support:exhausting-a-stack
    (is (= 7 (exit-code-of *exhaust-stacks*)))))

(test waiting-again-asks-no-second-thread
  "One thread of the reserve is enough until the thread that runs a loop is overtaken."
  (let* ((reserve (make-reserve :threads 1))
         (event-loop (make-event-loop :reserve reserve))
         (answers '())
         (threads 0)
         (done (sb-thread:make-semaphore)))
    (launch-event-loop event-loop)
    (unwind-protect
         (progn
           (post event-loop
                 (lambda ()
                   (defer event-loop
                     (lambda (loop)
                       (call-user loop
                                  (fn (_argument)
                                    (dotimes (i 10) (push (prepare-to-wait) answers))
                                    ;; before this one, overtaken, becomes one of them
                                    (setf threads (reserve-thread-count reserve))
                                    (sb-thread:signal-semaphore done))
                                  nil))
                     event-loop)))
           (is-true (await done))
           (is (every #'identity answers))
           (is (= 1 threads)))
      (stop-event-loop event-loop)
      (join-event-loop event-loop)
      (close-reserve reserve 5))))

(test user-code-drives-on
  "User code that waits runs its loop until the awaited event comes or other user code is due."
  (let* ((reserve (make-reserve :threads 1))
         (event-loop (make-event-loop :reserve reserve))
         (posted nil) (ran '())
         (done (sb-thread:make-semaphore)))
    (flet ((wait (argument)
             (declare (ignore argument))
             (post event-loop (lambda () (setf posted t)))
             (push (drive-on event-loop (lambda (loop) (declare (ignore loop)) posted) event-loop)
                   ran)
             (push posted ran)
             (post event-loop (lambda ()
                                (defer event-loop
                                  (fn (_argument) (sb-thread:signal-semaphore done))
                                  event-loop)))
             (push (drive-on event-loop (constantly nil) event-loop) ran)
             nil))
      (is (null (drive-on event-loop (constantly t) event-loop)) "another thread runs the loop")
      (launch-event-loop event-loop)
      (unwind-protect
           (progn
             (post event-loop (lambda ()
                                (defer event-loop
                                  (lambda (loop) (call-user loop #'wait nil))
                                  event-loop)))
             (is-true (await done))
             (is (equal '(t t t) ran)))
        (stop-event-loop event-loop)
        (join-event-loop event-loop)
        (close-reserve reserve 5)))))

(defun call-with-lost-loop (function reserve start)
  "Call FUNCTION with a loop of RESERVE, which START, a function, has started, while user code that
has lost the loop runs on its own thread, and with a function that lets that code return."
  (let ((event-loop (make-event-loop :reserve reserve))
        (waits (sb-thread:make-semaphore)) (over (sb-thread:make-semaphore)))
    (flet ((overstay (argument)
             (declare (ignore argument))
             (prepare-to-wait)
             (sb-thread:signal-semaphore waits)
             (await over)))
      (funcall start event-loop)
      (unwind-protect
           (progn
             (post event-loop (lambda ()
                                (defer event-loop
                                  (lambda (loop) (call-user loop #'overstay nil))
                                  event-loop)))
             (is-true (await waits))
             (settle event-loop)        ; a reserve thread runs it
             (funcall function event-loop (lambda () (sb-thread:signal-semaphore over))))
        (sb-thread:signal-semaphore over)
        (stop-event-loop event-loop)
        (join-event-loop event-loop)))))

(defun check-places-of-lost-loop (start)
  "Check how many functions of a quota may run on a reserve of two threads while one of them runs a
loop that START has started, and when that has stopped."
  (let* ((reserve (make-reserve :threads 2 :idle-seconds 30))
         (quota (make-quota :parent (clgrpc.loop::reserve-root reserve) :weight 7))
         (begun (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
    (flet ((block-a-thread ()
             (run-on-reserve reserve
                             (lambda () (sb-thread:signal-semaphore begun) (await release))
                             :quota quota)))
      (unwind-protect
           (progn
             (call-with-lost-loop
              (lambda (event-loop let-return)
                (loop repeat 3 do (block-a-thread))
                (is-true (await begun))
                ;; on a busy machine one reserve thread may take the loop from another meanwhile
                (settle event-loop)
                (is (= 1 (quota-running quota))
                    "code that has lost the loop counts as running")
                (funcall let-return)
                (is-true (await begun) "its place is free for what waits")
                (settle event-loop)
                (is (= 2 (quota-running quota)) "the other place is not free"))
              reserve start)
             (sb-thread:signal-semaphore release)
             (is-true (await begun))
             (is (eq :queued (block-a-thread)) "no more than before without the loop"))
        (sb-thread:signal-semaphore release 4)
        (is-true (close-reserve reserve 10))))))

(test a-loop-that-is-taken-over-keeps-no-thread-from-others
  "While a reserve thread runs a loop whose own thread has returned, others can have as many threads
as before."
  (check-places-of-lost-loop #'launch-event-loop)
  ;; a thread of the program, which does not become one of the reserve's
  (let ((runner nil))
    (check-places-of-lost-loop
     (lambda (event-loop)
       (setf runner (sb-thread:make-thread #'run-event-loop :arguments (list event-loop)))))
    (sb-thread:join-thread runner)))

(test small-reserves-have-a-thread-for-take-overs
  "While other functions have all threads, a loop whose user code waits can still be taken over."
  (dolist (count '(1 4 15))
    (let ((reserve (make-reserve :threads count))
          (begun (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore)))
      (unwind-protect
           (progn
             (loop repeat count
                   do (run-on-reserve reserve (lambda ()
                                                (sb-thread:signal-semaphore begun)
                                                (await release))))
             (is-true (await begun count))
             (is-false (run-on-reserve reserve #'list :if-busy :refuse))
             (call-with-lost-loop (lambda (event-loop let-return)
                                    (settle event-loop)
                                    (funcall let-return))
                                  reserve #'launch-event-loop))
        (sb-thread:signal-semaphore release count)
        (is-true (close-reserve reserve 10))))))

(test requests-for-a-thread-do-not-pile-up
  "While no thread is free one request for a take-over waits, however many functions are late."
  (let* ((reserve (make-reserve :threads 1))
         (event-loop (make-event-loop :reserve reserve))
         (requests (list 0)) (waiting '())
         (begun (sb-thread:make-semaphore)) (release (sb-thread:make-semaphore))
         (done (sb-thread:make-semaphore)))
    (flet ((stay (argument)
             (declare (ignore argument))
             (let ((end (+ (monotonic-ns) (seconds-ns *patience-seconds*)))
                   (before (car requests)))
               (loop until (or (< before (car requests)) (< end (monotonic-ns)))
                     do (sb-thread:thread-yield))
               (push (clgrpc.loop::quota-waiting (clgrpc.loop::reserve-root reserve)) waiting)
               (sb-thread:signal-semaphore done))))
      ;; the one thread, and the one more that a take-over could have
      (loop repeat 2
            do (run-on-reserve reserve
                               (lambda () (sb-thread:signal-semaphore begun) (await release))
                               :if-busy :exceed))
      (is-true (await begun 2))
      (sb-int:encapsulate 'clgrpc.loop::request-takeover 'count
                          (lambda (original loop &rest more)
                            (multiple-value-prog1 (apply original loop more)
                              (when (eq loop event-loop) (sb-ext:atomic-incf (car requests))))))
      (launch-event-loop event-loop)
      (unwind-protect
           (progn
             (post event-loop
                   (lambda ()
                     (loop repeat 10
                           do (defer event-loop
                                (lambda (loop) (call-user loop #'stay nil))
                                event-loop))))
             (is-true (await done 10))
             (is (equal (make-list 10 :initial-element 1) waiting)))
        (sb-int:unencapsulate 'clgrpc.loop::request-takeover 'count)
        (sb-thread:signal-semaphore release 2)
        (stop-event-loop event-loop)
        (is-true (join-event-loop event-loop))
        (is-true (close-reserve reserve 10))))))

(test the-lock-of-a-reserve-is-taken
  (let* ((reserve (make-reserve)) (root (reserve-root reserve))
         (worker (clgrpc.loop::make-worker :function nil :quota root)))
    (is (null (support:lockless (clgrpc.loop::reserve-lock reserve)
                                `(clgrpc.loop::reserve-thread-p ,reserve)
                                `(run-on-reserve ,reserve ,#'list)
                                `(quota-open-p ,reserve ,root)
                                `(charge-thread ,reserve 1 ,(constantly nil))
                                `(clgrpc.loop::count-runner ,reserve 1 ,(constantly nil))
                                `(leave-reserve ,reserve ,root)
                                `(clgrpc.loop::work ,reserve ,worker)
                                `(clgrpc.loop::next-function ,reserve ,worker)
                                `(clgrpc.loop::start-waiting ,reserve)
                                `(clgrpc.loop::await-function ,reserve ,worker)
                                `(clgrpc.loop::enlist ,reserve) `(close-reserve ,reserve 0))))))
