;;;; The pipeline: order, at most once, bounds, what comes of a stream that breaks.

(in-package #:clgrpc.tests.raft)

(defun give-entries (peer count &key (octets 10) (previous 0) wait)
  "Give PEER COUNT requests of an entry each; return a function that returns what their functions
were called with, (index . match index or status), in the order of the calls."
  (let ((told (make-fifo)))
    (loop for index from (1+ previous) to (+ previous count)
          do (let ((index index))
               (unless (raft:pipeline-entries
                        peer (request (1- index) 1 :octets octets)
                        (lambda (response error)
                          (enqueue (cons index (if error
                                                   (grpc:rpc-error-status error)
                                                   (v1:append-entries-response-match-index
                                                    response)))
                                   told))
                        :wait wait)
                 (return))))
    (lambda () (copy-list (fifo-items told)))))

(defun up-to (count &optional (previous 0))
  (loop for index from (1+ previous) to (+ previous count) collect index))

(test entries-flow-in-order
  (over-transports (peer member (make-instance 'member))
    (let ((told (give-entries peer 1000)))
      (is-true (raft:flush-pipeline peer :timeout 20))
      (is (equal (up-to 1000) (mapcar #'car (funcall told))))
      (is (loop for (index . match) in (funcall told) always (<= index match)))
      (is (equal (up-to 1000) (reverse (member-indices member))) "each once, in order")
      (is (= 1 (getf (raft:peer-statistics peer) :streams))))))

(test functions-that-fail
  "One that fails keeps the others from nothing, and the pipeline goes on."
  (with-member (peer (make-instance 'member))
    (flet ((bug (response error)
             (declare (ignore response error))
             (error "This is a bug.")))
      (with-logged (events)
        (dotimes (i 3) (is-true (raft:pipeline-entries peer (request i 1) #'bug)))
        (let ((told (give-entries peer 20 :previous 3)))
          (is-true (raft:flush-pipeline peer :timeout 20))
          (is (equal (up-to 20 3) (mapcar #'car (funcall told)))))
        (is (equal (make-list 3 :initial-element '(:error :raft-then-error))
                   (mapcar (lambda (event) (subseq event 0 2)) (events))))))))

(defun gated-member (gate)
  "A member that waits for GATE, a semaphore, before it handles a request."
  (make-instance 'member :delay (fn (_request) (sb-thread:wait-on-semaphore gate))))

(test waiting-entries-are-put-together
  "While the window is full, what waits becomes one request."
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member :window 1)
      (let ((told (give-entries peer 100)))
        (is (= 1 (getf (raft:peer-statistics peer) :under-way)))
        (sb-thread:signal-semaphore gate 1000)
        (is-true (raft:flush-pipeline peer))
        (is (equal (cons '(1 . 1) (loop for i in (up-to 99 1) collect (cons i 100)))
                   (funcall told)))
        (is (= 2 (member-requests member)))))))

(test a-full-pipeline-holds-up
  "One that must not wait is told; one that may waits for room, and no longer than it says."
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member :max-entries 5 :window 2)
      (let ((told (give-entries peer 10 :wait 0)))
        (is (= 5 (getf (raft:peer-statistics peer) :queued-entries)))
        (is-false (raft:pipeline-entries peer (request 5 1) #'list :wait 0.05))
        (let ((waiter (in-thread (raft:pipeline-entries peer (request 5 1) #'list :wait 5))))
          (sb-thread:signal-semaphore gate 100)
          (is-true (sb-thread:join-thread waiter))
          (is-true (raft:flush-pipeline peer))
          (is (equal (up-to 5) (mapcar #'car (funcall told))))
          (is (equal (up-to 6) (reverse (member-indices member)))))))))

(test the-bound-of-octets
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member :max-octets 2500)
      (is-true (raft:pipeline-entries peer (request 0 1 :octets 10000) #'list)
               "an empty one takes anything")
      (is-false (raft:pipeline-entries peer (request 1 1 :octets 1) #'list :wait 0))
      (sb-thread:signal-semaphore gate 100)
      (is-true (raft:flush-pipeline peer))
      (give-entries peer 10 :previous 1 :octets 1000 :wait 0)
      (is-true (raft:flush-pipeline peer))
      (is (<= 3 (member-last-index member))))))

(test long-entries
  "Of a megabyte, as they were."
  (over-transports (peer member (make-instance 'member))
    (let ((told (give-entries peer 20 :octets 1048576)))
      (is-true (raft:flush-pipeline peer :timeout 20))
      (is (equal (up-to 20) (mapcar #'car (funcall told))))
      (is (equal (up-to 20) (reverse (member-indices member))))
      (is (= 1048576 (length (member-data member))))
      (is (every (lambda (octet) (= 20 octet)) (member-data member))))))

(test a-request-that-is-too-long
  "It ends the stream, and those behind it are told; the next stream is as any other."
  (with-member (peer (make-instance 'member) :max-send-octets 5000)
    (let ((error nil))
      (raft:pipeline-entries peer (request 0 1 :octets 10000)
                             (fn (_response problem) (setf error problem)))
      (is-true (raft:flush-pipeline peer))
      (is (typep error 'grpc:resource-exhausted))
      (let ((told (give-entries peer 1)))
        (is-true (raft:flush-pipeline peer))
        (is (equal '((1 . 1)) (funcall told)))))))

(test an-answer-that-does-not-come
  "A member that does not answer in time has its stream given up."
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member :timeout 0.2)
      (let ((told (give-entries peer 3)))
        (is-true (raft:flush-pipeline peer :timeout 5))
        (is (equal '((1 . :deadline-exceeded) (2 . :deadline-exceeded) (3 . :deadline-exceeded))
                   (funcall told)))
        (sb-thread:signal-semaphore gate 100)))))

(test a-closed-peer
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate))
         (told nil))
    (with-member (peer member)
      (setf told (give-entries peer 3))
      (raft:close-peer peer)
      (is (equal '((1 . :cancelled) (2 . :cancelled) (3 . :cancelled)) (funcall told)))
      (signals misuse (raft:pipeline-entries peer (request 0 1) #'list))
      (sb-thread:signal-semaphore gate 100))))

(test who-must-not-wait-does-not
  "With :wait 0, also where the stream takes nothing; what was refused there is sent later. A stream
takes what its windows are, and as much again, which the member's end queues: 5.2 MB."
  (let* ((gate (sb-thread:make-semaphore))
         (member (gated-member gate)))
    (with-member (peer member :timeout 100 :window 10000 :batch-octets 1)
      (let* ((told nil)
             (giver (in-thread (setf told (give-entries peer 100 :octets 100000 :wait 0)))))
        (eventually told)
        (is (= 100 (getf (raft:peer-statistics peer) :queued-entries)))
        (is (> 70 (getf (raft:peer-statistics peer) :under-way)))
        (sb-thread:signal-semaphore gate 1000)
        (sb-thread:join-thread giver)
        (is-true (raft:flush-pipeline peer))
        (is (equal (up-to 100) (mapcar #'car (funcall told))))
        (is (equal (up-to 100) (reverse (member-indices member))))
        (is (= 100 (getf (raft:peer-statistics peer) :entries)))))))

(defun interfering (function)
  "An interceptor that calls FUNCTION with each request of a stream before it is sent."
  (lambda (method request options next)
    (let ((call (funcall next method request options)))
      (grpc:filter-messages call :outgoing (lambda (message) (funcall function) message))
      call)))

(defun call-with-stand-in (name function body)
  "Call BODY while NAME, the name of a function, means FUNCTION, of that function and its
arguments."
  (with-replaced ((name function)) (funcall body)))

(test a-stream-with-less-room-than-it-said
  "What it refuses though it had room is sent later, in its turn, and the answers are those to it."
  (let ((member (make-instance 'member)) (refuses t))
    (with-member (peer member)
      (call-with-stand-in
       'clgrpc.rpc:try-send
       (lambda (function call message &rest options)
         (if (shiftf refuses nil)
             nil
             (apply function call message options)))
       (lambda ()
         (let ((told (give-entries peer 3)))
           (is (zerop (getf (raft:peer-statistics peer) :under-way)))
           (is (zerop (member-requests member)))
           (clgrpc.raft::pump peer :room t)
           (is-true (raft:flush-pipeline peer :timeout 20))
           (is (equal '((1 . 1) (2 . 3) (3 . 3)) (funcall told)))
           (is (equal (up-to 3) (reverse (member-indices member))))
           (is (= 3 (getf (raft:peer-statistics peer) :entries)))))))))

(define-condition trouble (serious-condition) ())

(defun check-unwound (peer &optional (around #'funcall))
  "Check that a request to PEER whose thread is unwound, sent by a function that AROUND calls, ends
with an error, and that later ones are sent."
  (let ((error nil))
    (funcall around
             (lambda ()
               (catch 'out
                 (raft:pipeline-entries peer (request 0 1) (fn (_response problem)
                                                             (setf error problem))))))
    (is-true (raft:flush-pipeline peer :timeout 20))
    (is (typep error 'grpc:rpc-error))
    (let ((told (give-entries peer 5)))
      (is-true (raft:flush-pipeline peer :timeout 20))
      (is (equal (up-to 5) (mapcar #'car (funcall told)))))))

(defparameter *ways-out* (list (lambda () (throw 'out nil)) (lambda () (error 'trouble)))
  "Functions that leave the function that calls them.")

(test a-stream-that-is-not-set-up
  "Its call is ended, who waited for it is told, and the next stream is as any other."
  (dolist (leave *ways-out*)
    (let ((call nil))
      (with-member (peer (make-instance 'member))
        (check-unwound peer (lambda (send)
                              (call-with-stand-in 'clgrpc.raft::watch-stream
                                                  (fn (_function _peer its-call)
                                                    (setf call its-call)
                                                    (funcall leave))
                                                  send)))
        (eventually (eq :cancelled (clgrpc.rpc:call-status call)))))))

(test a-thread-that-is-unwound-while-it-sends
  "It takes nobody along: what is under way ends, and what comes later is sent."
  (dolist (leave *ways-out*)
    (let ((leaves t))
      (with-member (peer (make-instance 'member)
                         :interceptors (list (interfering
                                              (lambda ()
                                                (when (shiftf leaves nil) (funcall leave))))))
        (check-unwound peer)))))

(test a-thread-that-is-unwound-stops-no-other
  "One that is interrupted before it begins to send, or after it has ended, leaves the pipeline to
the thread that sends."
  (with-member (peer (make-instance 'member))
    (let ((pipe (raft::peer-pipe peer)) (claim (list nil)))
      (setf (raft::pipe-pumping pipe) claim)
      (raft::stop-pumping peer (list nil))
      (is (eq claim (raft::pipe-pumping pipe)))
      (setf (raft::pipe-pumping pipe) '())
      (let ((told (give-entries peer 3)))
        (is-true (raft:flush-pipeline peer :timeout 20))
        (is (equal (up-to 3) (mapcar #'car (funcall told))))))))

(test who-waits-for-a-stream-is-told-of-the-end
  "A request that was given while the stream before it ended, of a peer that is closed then."
  (let* ((member (make-instance 'member :delay (fn (_request) (error "This is a bug."))))
         (given (sb-thread:make-semaphore)) (told nil) (closed nil))
    (with-member (peer member)
      (raft:pipeline-entries peer (request 0 1)
                             (fn (_response _error)
                               (raft:pipeline-entries peer (request 0 1)
                                                      (fn (_response error) (setf told error))
                                                      :wait 0)
                               (sb-thread:signal-semaphore given)
                               (wait-until (lambda () closed))))
      (sb-thread:wait-on-semaphore given)
      (let ((closer (sb-thread:make-thread #'raft:close-peer :arguments (list peer))))
        (eventually (clgrpc.raft::pipe-closed (clgrpc.raft::peer-pipe peer)))
        (setf closed t)
        (sb-thread:join-thread closer)
        (eventually (typep told 'grpc:cancelled))))))

;;; On the simulator

(test what-waits-behind-others-does-not-time-out
  "The time counts while no answer comes; and what is measured is the time from the sending."
  (let ((member (make-instance 'member :delay (fn (_request) (sim:wait-for 1/4)))))
    (with-simulated-member (simulation peer host member (:seed 1)
                            :timeout 1/2 :window 1 :batch-entries 1)
      (sim:wait-for 1)
      (let ((told (give-entries peer 20)))
        (is-true (raft:flush-pipeline peer :timeout 20))
        (is (equal (loop for i in (up-to 20) collect (cons i i)) (funcall told)))
        (is (< 0.2 (getf (raft:peer-statistics peer) :latency) 0.4))
        (setf (member-delay member) (fn (_request) (sim:wait-for 1)))
        (let ((told (give-entries peer 2 :previous 20)))
          (is-true (raft:flush-pipeline peer :timeout 20))
          (is (equal '((21 . :deadline-exceeded) (22 . :deadline-exceeded)) (funcall told))))))))

(defun broken-streams (simulation)
  "A leader gives entries while the network cuts connections, loses packets and is partitioned;
those that failed it gives again from where the member's log ends."
  (let* ((chance (sim:make-chance (sim:simulation-seed simulation)))
         (member (make-instance 'member))
         (host (add-member member))
         (home (sim:add-host "a" (constantly '())))
         (peer (sim:on-host (home) (raft:make-peer "B" "b:7000" :group "G" :sender "A"
                                                       :timeout 2 :window 4))))
    (loop repeat 3
          do (sim:at (sim:between chance 0 4)
                     (if (sim:chance-p chance 2)
                         (lambda () (sim:cut home host))
                         (lambda ()
                           (sim:partition home host)
                           (sim:at (sim:between chance 0 3) (lambda () (sim:heal home host)))))))
    (unwind-protect
         (progn
           (loop with next = 0
                 repeat 200
                 while (< next 60)
                 do (let* ((count (min 10 (- 60 next)))
                           (told (give-entries peer count :previous next)))
                      (sim:wait-for 1/4)
                      (raft:flush-pipeline peer :timeout 10)
                      (let ((told (funcall told)))
                        (unless (equal (up-to count next) (mapcar #'car told))
                          (error "The order is ~S." told))
                        (when (loop for (nil . outcome) in told thereis (integerp outcome))
                          (loop for (index . outcome) in told
                                do (when (and (integerp outcome)
                                              (> index (member-last-index member)))
                                     (error "Entry ~D was acknowledged and never came." index)))))
                      (setf next (member-last-index member))))
           (unless (equal (up-to 60) (reverse (member-indices member)))
             (error "~S came." (reverse (member-indices member)))))
      (raft:close-peer peer))))

(test streams-that-break
  "Every entry comes once, in order, and what was acknowledged is there, over 60 seeds."
  (is (= 60 (sim:run-seeds #'broken-streams :count 60 :latency '(1/1000 1/20) :losses 20))))
