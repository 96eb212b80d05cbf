;;;; The turn: the order of its phases, how long it may wait, and what happens in the middle of a
;;;; long one. The test's thread makes the turns, by a clock that it sets.

(in-package #:clgrpc.tests.loop)

(test phases-have-their-order
  (with-still-loop (loop :clock (constantly +noon-ns+))
    (let ((ran '()))
      (flet ((note (what) (push what ran)))
        (call-last loop #'note :last)
        (call-before-flush loop #'note :early)
        (start-timer loop (make-timer #'note :timer) (1- +noon-ns+))
        (post loop (lambda () (note :posted)))
        (defer loop #'note :deferred)
        (make-turn-of loop)
        (is (equal '(:deferred :posted :timer :early :last) (reverse ran)))))))

(test a-turn-waits-until-something-is-due
  (let ((waits '()))
    (with-still-loop (loop :clock (constantly +noon-ns+)
                           :note (lambda (what) (unless (eq what :wake) (push what waits))))
      (flet ((wait ()
               (make-turn-of loop)
               (first waits))
             (timer (after-ns)
               (let ((timer (make-timer #'identity nil)))
                 (start-timer loop timer (+ +noon-ns+ after-ns))
                 timer)))
        (is (= -1 (wait)) "Without anything to come it waits for events alone.")
        (let ((timer (timer (* 5 +ns-per-second+))))
          (is (< 0 (wait) (1+ (* 5 +ns-per-second+))))
          (defer loop #'identity nil)
          (is (= 0 (wait)))
          (post loop (constantly nil))
          (is (= 0 (wait)))
          (stop-timer loop timer))
        (timer (* 100 24 3600 +ns-per-second+))
        (is (<= (wait) clgrpc.loop::+longest-wait-ns+) "The wait has a limit.")))))

(test timers-run-in-the-middle-of-a-long-turn
  (let* ((now +noon-ns+) (ran '())
         (many clgrpc.loop::+functions-per-look+))
    (with-still-loop (loop :clock (lambda () now))
      (flet ((begin (ns due)
               (setf ran '())
               (start-timer loop
                            (make-timer (lambda (argument) (push argument ran)) :timer)
                            (+ now due))
               (dotimes (i (* 4 many))
                 (defer loop (lambda (i) (incf now ns) (push i ran)) i)))
             (ran-before ()
               (make-turn-of loop)
               (position :timer (reverse ran))))
        (begin 1000 20500)
        (is (< 20 (ran-before) (+ 21 many)) "The loop looks after at most ~D functions." many)
        (begin 800000 1000000)
        (is (= 2 (ran-before)) "The functions are not yet known to be slow.")
        (begin 800000 8000000)
        (is (= 10 (ran-before)) "The loop looks after each slow function.")
        (begin 1000 500)
        ;; the watchdog has found the next turn to be long
        (setf (clgrpc.loop::event-loop-long-turn loop) (1+ (clgrpc.loop:event-loop-turns loop)))
        (is (= 1 (ran-before)) "In a long turn the loop looks after each function.")))))

(test looks-go-on-after-a-function-that-fails
  "The failing function is the one after which the loop would have looked."
  (let ((now +noon-ns+) (ran '()))
    (with-still-loop (loop :clock (lambda () now))
      (with-logged (events)
        (start-timer loop
                     (make-timer (lambda (argument) (push argument ran)) :timer)
                     (+ now 1000000))
        (dotimes (i 20)
          (defer loop (lambda (i)
                        (incf now 2000000)
                        (push i ran)
                        (when (= i 1) (error 'mishap)))
                 i))
        (make-turn-of loop)
        (is (eql 3 (position :timer (reverse ran))) "~S" (events))))))

(test output-leaves-in-the-middle-of-a-long-turn
  (let ((now +noon-ns+) (connection nil) (end nil) (sent '()))
    (with-still-loop (loop :clock (lambda () now))
      (flet ((connect (descriptor)
               (setf (values connection end) (memory-connection loop descriptor #'takes-all)))
             (write-some (count)
               (append-octets (connection-output connection) (make-octets count)))
             (work (ns)
               (incf now ns)
               (push (buffer-fill (end-sent end)) sent)))
        (defer loop #'connect 1000001)
        (make-turn-of loop)
        (defer loop #'write-some 10)
        (loop repeat (* 2 clgrpc.loop::+functions-per-look+) do (defer loop #'work 100000))
        (make-turn-of loop)
        (is (= 0 (first (last sent))))
        (is (= 10 (first sent)) "The output has not waited for the turn's end.")))))

(test output-of-reading-waits-for-the-answer
  "In the middle of a turn, output written by reading is sent together with a function's output; but
it does not wait for long."
  (flet ((sent-after-functions (ns)
           "The octets sent after each of 20 functions that take NS; another one answers between."
           (let ((now +noon-ns+) (connection nil) (end nil) (sent '()))
             (with-still-loop (loop :clock (lambda () now))
               (labels ((work (argument)
                          (declare (ignore argument))
                          (incf now ns)
                          (push (buffer-fill (end-sent end)) sent))
                        (write-some (count)
                          (append-octets (connection-output connection) (make-octets count)))
                        (input (connection octets start end)
                          (declare (ignore connection octets start))
                          (write-some 17)
                          (loop repeat 10 do (defer loop #'work nil))
                          (defer loop #'write-some 3)
                          (loop repeat 10 do (defer loop #'work nil))
                          end)
                        (connect (descriptor)
                          (setf (values connection end)
                                (memory-connection loop descriptor #'input))))
                 (defer loop #'connect 1000001)
                 (make-turn-of loop)
                 (append-octets (end-arrived end) (octets-of 1))
                 (clgrpc.loop::mark-ready connection)
                 (make-turn-of loop)
                 (is (= 20 (buffer-fill (end-sent end))))
                 (reverse sent))))))
    (let ((sent (sent-after-functions 100000)))
      (is (null (remove 0 (subseq sent 0 10))) "~A" sent)
      (is (= 20 (first (last sent))) "The answer waits no more than others: ~A" sent))
    (let ((sent (sent-after-functions 1000000)))
      (is (eql 5 (position 17 sent)) "~A" sent))))

(defun sent-of-a-long-turn (input &key (fill #'identity) (first (constantly nil)))
  "Two values: the octets sent before each of 20 deferred functions, 100 µs each, of a turn that
reads an octet; and those sent by its end. INPUT is called with the connection when the octet is
read, FILL as a handler's FILL, and FIRST, with the connection and its end, before the 20."
  (let ((now +noon-ns+) (connection nil) (end (make-end)) (sent '()))
    (with-still-loop (loop :clock (lambda () now))
      (flet ((work (argument)
               (declare (ignore argument))
               (push (buffer-fill (end-sent end)) sent)
               (incf now 100000)))
        (defer loop
          (lambda (descriptor)
            (setf connection
                  (make-connection loop (make-byte-channel **memory** descriptor "memory" end)
                                   (make-handler :fill fill
                                                 :input (fn (connection _octets _start end)
                                                          (funcall input connection)
                                                          end)))))
          1000001)
        (make-turn-of loop)
        (defer loop (lambda (end) (funcall first connection end)) end)
        (loop repeat 20 do (defer loop #'work nil))
        (append-octets (end-arrived end) (octets-of 1))
        (clgrpc.loop::mark-ready connection)
        (make-turn-of loop)
        (values (reverse sent) (buffer-fill (end-sent end)))))))

(test data-that-a-window-lets-go-do-not-wait
  "Data that FILL may write after reading are an answer that has waited long enough, even beside the
answer to a PING."
  (loop for ping in '(0 17)
        do (let ((waiting 0))
             (multiple-value-bind (sent all)
                 (sent-of-a-long-turn
                  (lambda (connection)
                    (append-octets (connection-output connection) (make-octets ping))
                    (setf waiting 1000))
                  :fill (lambda (connection)
                          (when (plusp waiting)
                            (append-octets (connection-output connection)
                                           (make-octets (shiftf waiting 0))))))
               (is (= (+ 1000 ping) all))
               (is (> 8 (or (position all sent) 20)) "~A" sent)))))

(test the-owner-of-waiting-output-is-asked-once
  "FILL is called once, however often the loop looks, and again before the output is sent."
  (let ((count 0))
    (multiple-value-bind (sent all)
        (sent-of-a-long-turn (lambda (connection)
                               (setf count 0)
                               (append-octets (connection-output connection) (make-octets 17)))
                             :fill (fn (_connection) (incf count)))
      (is (every #'zerop sent))
      (is (= 17 all))
      (is (= 2 count)))))

(test answers-leave-soon-although-their-connection-is-read-again
  (multiple-value-bind (sent all)
      (sent-of-a-long-turn (lambda (connection)
                             (append-octets (connection-output connection) (make-octets 17)))
                           :first (lambda (connection end)
                                    (append-octets (connection-output connection) (make-octets 3))
                                    (append-octets (end-arrived end) (octets-of 1))
                                    (clgrpc.loop::read-connection connection)))
    (is (= 37 all))
    (is (> 8 (or (position all sent) 20)) "~A" sent)))

(test a-turn-calls-some-of-what-was-posted
  "Other threads can post faster than the loop calls; connections and timers get turns."
  (let ((now +noon-ns+) (called '()) (waits '()))
    (with-still-loop (loop :clock (lambda () now)
                           :note (lambda (what) (unless (eq what :wake) (push what waits))))
      (dotimes (i 1000)
        (post loop (let ((i i)) (lambda () (incf now 100000) (push i called)))))
      (make-turn-of loop)
      (is (= (* 2 clgrpc.loop::+posts-per-look+) (length called)))
      (loop repeat 1000 until (= 1000 (length called)) do (make-turn-of loop))
      (is (= 8 (length waits)))
      (is (every #'zerop waits))
      (is (equal (loop for i below 1000 collect i) (reverse called))))))

(test a-turn-ends-some-connections
  "Each end also ends the calls of a connection, perhaps a thousand."
  (let ((now +noon-ns+) (ended 0) (connections '()) (other nil) (end nil))
    (with-still-loop (loop :clock (lambda () (incf now 1000000)))
      (labels ((connect (descriptor)
                 (let ((end (make-end)))
                   (values (make-connection loop
                                            (make-byte-channel **memory** descriptor "memory" end)
                                            (make-handler :input #'takes-all
                                                          :closed (fn (_connection _reason)
                                                                    (incf ended))))
                           end)))
               (begin (argument)
                 (declare (ignore argument))
                 (setf connections (loop for descriptor from 1000001 repeat 20
                                         collect (connect descriptor))
                       (values other end) (connect 1000050)))
               (work (argument)
                 (declare (ignore argument))
                 (dolist (connection connections) (close-connection connection :abort t))
                 (append-octets (connection-output other) (octets-of 1 2 3))))
        (defer loop #'begin nil)
        (make-turn-of loop)
        (defer loop #'work nil)
        (make-turn-of loop)
        (is (= 3 ended))
        (is (= 3 (buffer-fill (end-sent end))) "the output of the other connection is sent")
        (make-turn-of loop)
        (is (= 6 ended))
        (loop repeat 5 do (make-turn-of loop))
        (is (= 20 ended))))))

(test a-handler-that-fails-loses-its-own-connection-only
  (with-still-loop (loop)
    (with-logged (events)
      (let ((got 0) (bad nil) (good nil))
        (defer loop
          (fn (_argument)
            (flet ((ready (descriptor input)
                     (multiple-value-bind (connection end) (memory-connection loop descriptor input)
                       (append-octets (end-arrived end) (make-octets 5))
                       (clgrpc.loop::note-event connection clgrpc.loop:+readable+)
                       connection)))
              (setf bad (ready 1000001 (fn (_connection _octets _start _end) (error 'mishap)))
                    good (ready 1000002 (fn (_connection _octets start end)
                                          (incf got (- end start))
                                          end)))))
          nil)
        (make-turn-of loop)
        (make-turn-of loop)
        (is (= 5 got))
        (is (eq :closed (connection-state bad)))
        (is (eq :open (connection-state good)))
        (is (equal '(:connection-handler-error) (mapcar #'second (events))))))))

(test a-thread-that-is-overtaken-in-its-wait-leaves
  "It is woken, though nothing happens, and takes no events from the thread that now runs the loop;
nor does it stay in the wait when the loop stops, as it would if both had one poller. It closes its
own poller."
  (let ((reserve (make-reserve :threads 3))
        (descriptors 0))
    (with-loops (loop) (:reserve reserve)
      (settle loop)
      (setf descriptors (os:open-descriptor-count))
      (dotimes (i 3)
        (settle loop)
        (let ((baton 0) (thread nil))
          (eventually (progn (setf thread (clgrpc.loop::event-loop-thread loop)
                                   baton (clgrpc.loop::event-loop-baton loop))
                             (= clgrpc.loop::+waiting+ (clgrpc.loop::baton-state baton))))
          (is-true (clgrpc.loop::request-takeover loop baton :first))
          (eventually (not (eq thread (clgrpc.loop::event-loop-thread loop))))
          ;; the thread that has left is one of the reserve
          (eventually (= 1 (getf (event-loop-statistics loop) :idle-threads)))
          (is (= descriptors (os:open-descriptor-count)))))
      (is (= 42 (on-loop loop (constantly 42)))))
    (is-true (close-reserve reserve 10))))

(test newcomers-come-in-the-middle-of-a-long-turn
  "Input that arrives while deferred functions take long is read before all of them have run. A peer
that sends more after each answer gets half of the time, and the functions keep their order."
  (let ((now +noon-ns+) (ran '()) (many 100) (client nil) (met (sb-thread:make-semaphore)))
    (flet ((take (connection)
             (declare (ignore connection))
             (incf now 1000000)
             (push :newcomer ran)
             (if (find (1- many) ran)
                 (sb-thread:signal-semaphore met)
                 (client-send client (octets-of 1)))))
      (with-loops (loop) (:clock (lambda () now))
        (let ((listener (listen-with (list loop)
                                     (make-handler
                                      :input (fn (connection _octets _start end)
                                               (defer loop #'take connection)
                                               end)))))
          (with-clients (peer) ((listener-address listener))
            (setf client peer
                  ran (list (1- many)))
            (client-send client (octets-of 1))
            (is-true (await met))       ; it is accepted
            (on-loop loop
                     (lambda ()
                       (setf ran '())
                       (dotimes (i many)
                         (defer loop
                           (lambda (i)
                             (incf now 2000000)
                             (push i ran)
                             (when (= i 1) (client-send client (octets-of 1))))
                           i))))
            (is-true (await met)))))
      (let* ((ran (reverse ran))
             (newcomers (count :newcomer ran :end (position (1- many) ran))))
        (is (< 1 (position :newcomer ran) 20) "~A" ran)
        (is (<= 20 newcomers many) "newcomers have run ~D times" newcomers)
        (is (equal (loop for i below many collect i) (remove :newcomer ran)))))))

(test newcomers-come-before-what-was-left
  "A connection with input left from an earlier turn waits for connections that have become ready
since, even if it is the only one; but not for those whose handshake is not over. Each group keeps
its order."
  (loop for left in '(0 1 2 5)
        do (with-still-loop (loop :clock (constantly +noon-ns+))
             (flet ((fill-ready (start items)
                      (replace (clgrpc.loop::event-loop-ready loop) items :start1 start)
                      (setf (clgrpc.loop::event-loop-ready-count loop) (+ start (length items)))))
               (setf (clgrpc.loop::event-loop-ready loop) (make-array 16 :initial-element 0))
               (fill-ready 0 (loop for i below left collect i))
               (with-replaced (('clgrpc.loop::dispatch-events
                                (fn (&rest _arguments)
                                  (fill-ready left '(:a :shakes :b :c :begins))))
                               ('clgrpc.loop::connection-handshaking-p
                                (fn (_function connection)
                                  (member connection '(:shakes :begins)))))
                 (clgrpc.loop::note-events loop 0))
               (is (equalp (coerce (if (zerop left)
                                       '(:a :shakes :b :c :begins)
                                       `(:a :b :c ,@(loop for i below left collect i)
                                         :shakes :begins))
                                   'vector)
                           (subseq (clgrpc.loop::event-loop-ready loop) 0
                                   (clgrpc.loop::event-loop-ready-count loop))))
               (setf (clgrpc.loop::event-loop-ready-count loop) 0)))))
