;;;; Futures without a call.

(in-package #:clgrpc.tests.loop)

(defun outcome (future)
  "The values of FUTURE as a list, or the type of its error."
  (handler-case (multiple-value-list (loop:await future :timeout *patience-seconds*))
    (error (error) (type-of error))))

(test futures-are-settled-once
  (let ((future (make-future)))
    (is-false (future-done-p future))
    (is (search "pending" (princ-to-string future)))
    (is-true (resolve-future future 1 2))
    (is-false (resolve-future future 3))
    (is-false (reject-future future (make-condition 'mishap)))
    (cancel future)
    (is (equal '(1 2) (outcome future)))
    (is (equal '(1 2) (outcome future)))
    (is-true (future-done-p future))
    (is (search "done" (princ-to-string future))))
  (let ((future (make-future)))
    (resolve-future future)
    (is-false (resolve-future future 3))
    (is (equal '() (outcome future)))))

(test rejected-and-cancelled-futures
  (let ((rejected (make-future)) (cancelled '()) (given-up nil))
    (reject-future rejected (make-condition 'mishap))
    (is (eq 'mishap (outcome rejected)))
    (is (search "MISHAP" (princ-to-string rejected)))
    (setf cancelled (make-future :on-cancel (lambda () (setf given-up t))))
    (cancel cancelled "lost interest in")
    (is-true given-up)
    (is (eq 'future-cancelled (outcome cancelled)))
    (is (search "lost interest in" (princ-to-string (nth-value 1 (ignore-errors
                                                                  (loop:await cancelled))))))
    (signals await-timeout (loop:await (make-future) :timeout 0.01))))

(test what-is-no-future-is-not-awaited
  (flet ((complaint (function &rest arguments)
           (handler-case (progn (apply function arguments) "")
             (misuse (error) (princ-to-string error)))))
    (is (search "AWAIT needs one argument" (complaint #'loop:await)))
    (is (search "AWAIT takes keywords" (complaint #'loop:await (make-future) 5)))
    (is (search "is it :timeout?" (complaint #'loop:await (make-future) :timeuot 5)))
    (is (search "a number of seconds" (complaint #'loop:await (make-future) :timeout "5")))
    (is (search "ATTACH needs two arguments" (complaint #'attach (make-future))))
    (is (search "a function of its value and its error" (complaint #'attach (make-future) 5)))
    (is (search "ATTACH takes keywords" (complaint #'attach (make-future) #'list 5)))
    (is (search "is not a future" (complaint #'attach 5 #'list))))
  (signals misuse (loop:await 5))
  (signals misuse (loop:await '() :timeout 1))
  (signals misuse (attach 5 #'list))
  (signals misuse (cancel 5)))

(test attached-to-futures
  (let ((seen '()) (future (make-future)))
    (flet ((note (name)
             (lambda (value error) (push (list name value (and error (type-of error))) seen))))
      (is (eq future (attach future (note :a))))
      (attach future (lambda (value error) (declare (ignore value error)) (error 'mishap)))
      (attach future (note :b))
      (with-logged (events)
        (resolve-future future 7 8)
        (is (= 1 (count :completion-error (events) :key #'second))))
      (attach future (note :c))
      (let ((rejected (make-future)))
        (reject-future rejected (make-condition 'mishap))
        (attach rejected (note :d))))
    (is (equal '((:a 7 nil) (:b 7 nil) (:c 7 nil) (:d nil mishap)) (reverse seen)))))

(test attached-on-a-loop
  (with-loops (loop) ()
    (let ((future (make-future)) (seen (sb-thread:make-semaphore)) (where nil))
      (attach future (fn (_value _error)
                       (setf where *event-loop*)
                       (sb-thread:signal-semaphore seen))
              :on loop)
      (resolve-future future)
      (is-true (await seen))
      (is (eq loop where)))))

(test attached-on-a-loop-that-has-stopped
  "ATTACH refuses it. If the loop stops later it is not called, which is logged."
  (let ((future (make-future)) (called nil) (loop (make-event-loop)))
    (attach future (fn (_value _error) (setf called t))
            :on loop)
    (stop-event-loop loop)
    (with-logged (events)
      (resolve-future future)
      (is (= 1 (count :completion-not-called (events) :key #'second))))
    (is-false called)
    (signals misuse (attach (make-future) #'list :on loop))
    (signals misuse (attach (make-future) #'list :on 'loop))))

(test chains-of-futures-need-no-stack
  "Each function settles the next of very many futures, or attaches a function to a future that is
settled already: all are called in order, even if one is left by a non-local exit."
  (let* ((count 50000)
         (futures (coerce (loop repeat (1+ count) collect (make-future)) 'vector))
         (seen '()))
    (dotimes (i count)
      (let ((i i))
        (attach (aref futures i) (fn (value _error)
                                   (push value seen)
                                   (resolve-future (aref futures (1+ i)) (1+ value))
                                   (when (= i 777) (throw 'out :left))))))
    (is (eq :left (catch 'out (resolve-future (aref futures 0) 0))))
    (is (= count (length seen)))
    (is (apply #'> (subseq seen 0 1000)))
    (is (equal (list count) (outcome (aref futures count)))))
  (let ((count 0) (settled (make-future)))
    (resolve-future settled)
    (labels ((again (value error)
               (declare (ignore value error))
               (when (< (incf count) 50000) (attach settled #'again))))
      (attach settled #'again))
    (is (= 50000 count))))

(test postponed-functions-run-before-a-wait
  "A function that waits for a future which a postponed function settles does not wait for ever."
  (let* ((count 50000)
         (futures (coerce (loop repeat count collect (make-future)) 'vector))
         (reached 0)
         (found nil))
    (dotimes (i count)
      (let ((i i))
        (attach (aref futures i)
                (fn (_value _error)
                  (setf reached i)
                  (when (< (1+ i) count)
                    (resolve-future (aref futures (1+ i)))
                    (when (and (= reached i) (null found)) ; the next function is postponed
                      (let ((end (make-future)))
                        (setf found t)
                        (attach (aref futures (1+ i)) (fn (_value _error) (resolve-future end i)))
                        (setf found (outcome end)))))))))
    (resolve-future (aref futures 0))
    (is (integerp (first found)))
    (is (= (1- count) reached))))

(test timeouts-pass-attached-functions
  "The time of a WITH-TIMEOUT around code that settles a future may end while an attached function
runs; its user gets the timeout, and the other functions are called."
  (let ((future (make-future)) (called '()))
    (flet ((note (name &optional late)
             (fn (_value _error)
               (push name called)
               (when late (cerror "Go on." 'sb-ext:timeout :seconds 1)))))
      (attach future (note 1))
      (attach future (note 2 t))
      (attach future (note 3)))
    (is (eq :time-over (handler-case (resolve-future future)
                         (sb-ext:timeout () :time-over))))
    (is (equal '(1 2 3) (reverse called)))))

(test all-of-several
  (let* ((futures (loop repeat 3 collect (make-future)))
         (whole (all futures)))
    (resolve-future (third futures) 3)
    (resolve-future (first futures) 1)
    (is-false (future-done-p whole))
    (resolve-future (second futures) 2)
    (is (equal '((1 2 3)) (outcome whole))))
  (is (equal '(()) (outcome (all '()))))
  (let* ((futures (vector (make-future) (make-future))) (whole (all futures)))
    (reject-future (aref futures 1) (make-condition 'mishap))
    (is (eq 'mishap (outcome whole))))
  (let* ((futures (list (make-future) (make-future))) (whole (all futures)))
    (cancel whole)
    (is (eq 'future-cancelled (outcome whole)))
    (is (equal '(future-cancelled future-cancelled) (mapcar #'outcome futures)))))

(test any-of-several
  (let* ((futures (loop repeat 3 collect (make-future))) (whole (any futures)))
    (reject-future (first futures) (make-condition 'mishap))
    (is-false (future-done-p whole))
    (resolve-future (second futures) 2)
    (resolve-future (third futures) 3)
    (is (equal '(2) (outcome whole))))
  (let* ((futures (list (make-future) (make-future))) (whole (any futures)))
    (reject-future (first futures) (make-condition 'misuse :text "first"))
    (reject-future (second futures) (make-condition 'mishap))
    (is (eq 'mishap (outcome whole))))
  (signals misuse (any '())))

(test a-future-that-cannot-be-cancelled-keeps-no-other
  "ALL and ANY cancel all their futures, even if the function of one fails; the caller gets its
error."
  (dolist (combine '(all any))
    (let* ((futures (loop for name in '(first second third fourth)
                          collect (let ((fails (member name '(first third))))
                                    (make-future :on-cancel (lambda ()
                                                              (when fails (error 'mishap)))))))
           (whole (funcall combine futures)))
      (signals mishap (cancel whole))
      (is (every #'future-done-p futures) "~A" combine)
      (is-true (future-done-p whole)))))

(test settled-by-many-threads
  "One of the threads that settle a future does so, and each function runs once."
  (loop repeat 200
        do (let* ((future (make-future)) (runs (list 0)) (won (list 0))
                  (threads (loop for i below 4
                                 collect (sb-thread:make-thread
                                          (lambda (i)
                                            (attach future (fn (_value _error)
                                                             (sb-ext:atomic-incf (car runs))))
                                            (when (resolve-future future i)
                                              (sb-ext:atomic-incf (car won))))
                                          :arguments (list i)))))
             (mapc #'sb-thread:join-thread threads)
             (unless (and (= 4 (car runs)) (= 1 (car won)))
               (fail "~D runs, settled ~D times" (car runs) (car won)))))
  (pass))

(test functions-that-leave-keep-nothing-from-others
  "An attached function makes a non-local exit: all others are called, and so are the functions of
CANCEL."
  (flet ((called (settle)
           (let* ((called '())
                  (future (make-future :on-cancel (lambda () (push :cancelled called)))))
             (flet ((note (name &optional leave)
                      (fn (_value _error)
                        (push name called)
                        (when leave (throw 'out :left)))))
               (attach future (note 1))
               (attach future (note 2 t))
               (attach future (note 3 t))
               (attach future (note 4))
               (is (eq :left (catch 'out (funcall settle future)))))
             (reverse called))))
    (is (equal '(1 2 3 4) (called #'resolve-future)))
    (is (equal '(1 2 3 4 :cancelled) (called #'cancel)))))

(test interrupts-leave-no-future-between
  "A thread that is interrupted while it settles a future, as by SB-EXT:WITH-TIMEOUT, has settled it
or not: it may skip a user's function, but wakes all that wait."
  (let ((future nil) (called 0) (woken 0))
    (flet ((check (settle)
             (let ((points (support:interrupt-at-each-call
                            '(loop:run-completions loop:run-completion
                              loop:call-with-outcome)
                            (lambda ()
                              (setf called 0 woken 0 future (make-future))
                              (dotimes (i 3)
                                (attach future (fn (_value _error) (incf called)))
                                (loop::add-completion future (fn (_value _error) (incf woken))))
                              (funcall settle future))
                            (lambda (name)
                              (is (eq t (loop:future-done-p future)) "~A" name)
                              (is (<= 2 called 3) "~A" name)
                              (is (= 3 woken) "~A" name)))))
               (is (< 3 points)))))
      (check #'resolve-future)
      (check #'cancel))))

(test waits-of-no-time-and-of-many-centuries
  "SBCL does not take such time-outs. The first means only a look, the second no limit."
  (signals await-timeout (loop:await (make-future) :timeout 0))
  (let* ((future (make-future))
         (thread (in-thread
                   (loop until (loop:future-completions future) do (sb-thread:thread-yield))
                   (resolve-future future 7))))
    (is (eql 7 (loop:await future :timeout most-positive-fixnum)))
    (sb-thread:join-thread thread)))

(test calls-in-a-loop
  (with-loops (loop) ()
    (is (equal (list loop 2) (outcome (call-in-loop loop (lambda () (values *event-loop* 2))))))
    (is (eq 'mishap (outcome (call-in-loop loop (lambda () (error 'mishap))))))
    (is (eq 'misuse (outcome (call-in-loop loop (lambda () (loop:await (make-future)))))))
    (let* ((stuck (make-future)) (ran nil)
           (second (progn (post loop (lambda () (attach stuck #'list)))
                          (call-in-loop loop (lambda () (setf ran t))))))
      (is (equal '(t) (outcome second)))
      (is-true ran)))
  (let ((gone (make-event-loop)))
    (stop-event-loop gone)
    (signals misuse (call-in-loop gone #'list))))

(test waits-for-a-function-on-a-loop
  "Values and errors arrive; OTHERWISE is called if the loop does not answer or has stopped."
  (flet ((ask (loop function)
           (call-and-wait loop function 1/10 #'list)))
    (with-loops (loop) ()
      (is (equal (list loop 2) (multiple-value-list
                                (call-and-wait loop (lambda () (values *event-loop* 2))
                                               *patience-seconds* #'list))))
      (signals mishap (ask loop (lambda () (error 'mishap))))
      (is (equal '(1 2) (on-loop loop (lambda () (ask loop (lambda () (list 1 2)))))))
      (let ((go-on (sb-thread:make-semaphore)) (ran (make-future)))
        (post loop (lambda () (sb-thread:wait-on-semaphore go-on)))
        (is (equal '(:late) (ask loop (lambda () (resolve-future ran 3)))))
        (sb-thread:signal-semaphore go-on)
        (is (eql 3 (loop:await ran :timeout *patience-seconds*)))))
    (let ((gone (make-event-loop)))
      (stop-event-loop gone)
      (is (equal '(:stopped) (ask gone #'list))))))

(define-condition shortage (storage-condition) ())

(test conditions-that-are-no-errors-settle-futures
  "For example, the stack may be exhausted."
  (with-loops (loop) ()
    (let ((future (call-in-loop loop (lambda () (error 'shortage)))) (seen nil))
      (signals shortage (loop:await future :timeout *patience-seconds*))
      (attach future (lambda (value error) (setf seen (list value (type-of error)))))
      (is (equal '(nil shortage) seen)))))

(test every-end-of-a-call-in-a-loop-settles-its-future
  "So do a timeout that the function does not handle, and a non-local exit."
  (with-loops (loop) ()
    (let ((late (call-in-loop loop (lambda () (cerror "Go on." 'sb-ext:timeout :seconds 1)))))
      (signals sb-ext:timeout (loop:await late :timeout *patience-seconds*))))
  (let ((future (make-future)))
    (is (eq :left (catch 'out
                    (loop::settle-by-call future (lambda () (throw 'out :left))))))
    (is (eq 'future-cancelled (outcome future)))))

(test futures-forget-functions-that-are-not-needed
  "This is for a future that is not settled, whatever the others do."
  (let ((never (make-future)) (settled (make-future)) (rejected (make-future)))
    (resolve-future settled 1)
    (reject-future rejected (make-condition 'mishap))
    (is (equal '(1) (outcome (any (list never settled)))))
    (is (equal '(1) (outcome (any (list settled never)))))
    (is (eq 'mishap (outcome (all (list never rejected)))))
    (let* ((later (make-future)) (whole (any (list never later))))
      (is (= 1 (length (loop:future-completions never))))
      (resolve-future later 2)
      (is (equal '(2) (outcome whole))))
    (signals await-timeout (loop:await never :timeout 0.001))
    (is (null (loop:future-completions never)))))

(test attached-functions-are-left-cheaply
  "Leaving costs the same for one of very many as for one of few, and nothing is kept."
  (let* ((count 20000)
         (future (make-future))
         (seen '())
         (undoings (loop for i below count
                         collect (let ((i i))
                                   (loop:attach-for :giver future
                                                    (fn (_value _error) (push i seen))))))
         (before (sb-ext:get-bytes-consed)))
    (loop for undo in undoings
          for i from 0
          unless (member i '(7 19990)) do (funcall undo))
    (is (< (- (sb-ext:get-bytes-consed) before) 20000000))
    (is (<= 2 (length (loop:future-completions future)) 4))
    (funcall (first undoings))          ; once more: nothing
    (resolve-future future 1)
    (is (equal '(19990 7) seen) "those that remain are called, in their order"))
  (let* ((future (make-future)) (undo (loop:attach-for :giver future #'list)))
    (funcall undo)
    (is (null (loop:future-completions future)))
    (resolve-future future 1)
    (is (null (funcall undo)))))
