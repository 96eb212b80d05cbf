;;;; Calls that wait for room for their answers.

(in-package #:clgrpc.tests.server)

(test calls-wait-for-room
  "If answers would be longer than the heap has room for, one call begins nevertheless; the next
waits, and ends after the limit or with its caller."
  (with-server-loop (server-loop :options '(:room-wait-seconds 2)) (:ask #'keep-open)
    (comes server-loop)
    (let ((route (route-named (server::server-loop-server server-loop) 'lab.bench:ask)))
      (serving:note-answer route (ash (sb-ext:dynamic-space-size) -1))
      (asks 1 "Ask" 1)
      (memory:passes 0.01)
      (is-true (server::server-loop-probe server-loop))
      (asks 3 "Ask" 1)
      (asks 5 "Ask" 1)
      (memory:passes 1)
      (answered)
      (memory:hears '(:rst-stream 5 :cancel))
      (is (= 2 (server::server-loop-open server-loop)))
      (memory:passes 1.1)
      (answered '(3 :resource-exhausted))
      (is (= 1 (server::server-loop-open server-loop)))
      ;; the probe has ended, so the next call becomes the probe
      (memory:hears '(:rst-stream 1 :cancel))
      (memory:passes 0.01)
      (asks 7 "Ask" 1)
      (memory:passes 0.01)
      (is-true (plusp (server::server-call-began-ns (server::server-loop-probe server-loop))))
      (is (= 1 (server::server-loop-open server-loop)))
      (memory:hangs-up)
      (is (zerop (server::server-loop-open server-loop))))))

(defun call-with-room-short (function)
  "Call FUNCTION with a function that frees the heap again. Meanwhile so much of the heap is
promised that an answer gets a promise, but not a message to decode."
  (let ((octets (floor (* 2 (heap-size)) 5)) (freed nil))
    (flet ((free () (unless (shiftf freed t) (settle-octets octets))))
      (is-true (promise-octets octets))
      (unwind-protect (funcall function #'free)
        (free)))))

(defun promised-octets ()
  (car clgrpc.base::**promised**))

(defun room-awaited-p ()
  "True if a thread waits for room."
  (and (sb-thread:mutex-owner rpc::**room-turn**) t))

(test handlers-that-wait-for-room-hold-none
  "A handler that waits for room to decode its long request releases the room for its answer
meanwhile: handlers that hold room do not wait for each other."
  (with-probe (channel :server server :options '(:execution :blocking))
      (:ask (fn (note _call) note))
    (serving:note-answer (route-named server 'lab.bench:ask) 10000000)
    (let* ((before (promised-octets))
           (thread nil))
      (call-with-room-short
       (lambda (free)
         (let ((promised (promised-octets)))
           (setf thread (in-thread (number-of (ask channel (note 7 :body 100000)))))
           (eventually (and (room-awaited-p) (= promised (promised-octets))))
           (funcall free))))
      (is (eql 7 (sb-thread:join-thread thread :default nil)))
      (eventually (= before (promised-octets))))))

(test messages-that-wait-for-room-have-the-turn-of-their-peer-only
  "A compressed message that waits for room does not delay the decompression of other peers'
messages. Its own peer gets no more turns meanwhile, and owes the time that the message has used."
  (let* ((budget (server::make-decompression-budget)) (turns (server::budget-turns budget))
         (peers (sb-thread:semaphore-count turns))
         (all (sb-thread:semaphore-count (server::timed-turns))) (inside nil) (thread nil))
    (with-probe (channel :options '(:execution :blocking))
        (:ask (lambda (note call)
                (server::call-charged
                 call budget 1 0
                 (lambda ()
                   (loop with begin = (thread-time-ns)
                         until (< 50000000 (- (thread-time-ns) begin)))
                   (rpc:call-with-room
                    call 1000 (wire:wire-call-options call)
                    (lambda () (setf inside (sb-thread:semaphore-count (server::timed-turns))))
                    :received 1000)))
                note))
      (call-with-room-short
       (lambda (free)
         (setf thread (in-thread (number-of (ask channel (note 7)))))
         (eventually (and (room-awaited-p)
                          (= all (sb-thread:semaphore-count (server::timed-turns)))))
         (is (= (1- peers) (sb-thread:semaphore-count turns)))
         (is-true (server::budget-used-p budget))
         (is (null inside))
         (funcall free)))
      (is (eql 7 (sb-thread:join-thread thread :default nil)))
      (is (eql (1- all) inside))
      (is (= peers (sb-thread:semaphore-count turns)))
      (is (= all (sb-thread:semaphore-count (server::timed-turns)))))))

(test handlers-that-wait-for-a-turn-hold-no-room
  "A handler whose method gives long answers, and that waits for a turn to decompress, of its peer
or of all peers, releases the room for its answer meanwhile: a handler with a turn may wait for it."
  (let* ((budget (server::make-decompression-budget)) (entered nil) (before (promised-octets)))
    (with-probe (channel :server server :options '(:execution :blocking))
        (:ask (lambda (note call)
                (setf entered (< before (promised-octets)))
                (server::call-charged call budget 25 0 (constantly nil))
                note))
      (serving:note-answer (route-named server 'lab.bench:ask) 10000000)
      (dolist (turns (list (server::budget-turns budget) (server::timed-turns)))
        (let ((count (sb-thread:semaphore-count turns)) (thread nil))
          (sb-thread:wait-on-semaphore turns :n count)
          (setf entered nil
                thread (in-thread (number-of (ask channel (note 7)))))
          (eventually (and entered (= before (promised-octets))))
          (sb-thread:signal-semaphore turns count)
          (is (eql 7 (sb-thread:join-thread thread :default nil)))
          (eventually (= before (promised-octets)))
          (is (= count (sb-thread:semaphore-count turns))))))))

;;; A message with many fields, and so many octets without any of them

(grpc:define-proto "wide.proto"
  :source (format nil "syntax = \"proto3\"; package wide;
message Wide { repeated Wide parts = 1; int64 count = 2; ~{string f~D = ~:*~D; ~}}
service Taker { rpc Take(stream Wide) returns (Wide); }"
                  (loop for i from 3 to 60 collect i)))

(defclass taker (wide:taker) ())

(defmethod wide.taker:take ((service taker) stream &key)
  (let ((count 0))
    (grpc:do-messages (wide stream (wide:make-wide :count count))
      (incf count (length (wide:wide-parts wide))))))

(defun call-with-taker (options function)
  "Call FUNCTION with a server of a taker, with OPTIONS, where no call waits for room."
  (with-started (server (apply #'grpc:start-server (make-instance 'taker)
                               :listen "127.0.0.1:0" :room-wait-seconds 0 options)
                 :drain 5)
    (funcall function server)))

(defun wide (parts &optional (more 0))
  "A message with PARTS empty messages inside it, and MORE octets of text."
  (wide:make-wide :parts (loop repeat parts collect (wide:make-wide))
                  :f3 (make-string more :initial-element #\x)))

(defun call-with-outcomes (options function)
  "Call FUNCTION with a function that returns the outcome of a message at a server with OPTIONS: the
number of messages inside it, or the reason why its call ends."
  (call-with-taker
   options
   (lambda (server)
     (grpc:with-channel (channel (grpc:server-address server))
       (funcall function
                (lambda (wide)
                  (handler-case (wide:wide-count (wide.taker:take channel (list wide)
                                                                  :timeout +patience+))
                    (grpc:rpc-error (error) (grpc:rpc-error-status error)))))))))

(test short-messages-that-grow-need-room
  "A message of less than 16 KB whose messages inside take more than 1 MB is decoded in promised
room; a message that takes little needs no promise."
  (call-with-outcomes
   '()
   (lambda (outcome)
     (is (eql 8000 (funcall outcome (wide 8000))))
     (call-with-room-short
      (lambda (free)
        (is (eq :resource-exhausted (funcall outcome (wide 8000))))
        (is (eql 1 (funcall outcome (wide 1 15000))))
        (funcall free)))
     (is (eql 8000 (funcall outcome (wide 8000)))))))

(test short-messages-need-no-room-under-a-low-limit
  "If :MAX-DECODED-OCTETS is low a message of less than 16 KB takes little, and needs no promise."
  (call-with-outcomes
   '(:max-decoded-octets 0)
   (lambda (outcome)
     (call-with-room-short
      (lambda (free)
        (is (eql 1 (funcall outcome (wide 1 15000))))
        (is (eq :internal (funcall outcome (wide 1000))))
        (funcall free))))))

(test limits-just-below-the-usual-hold
  "A message that takes more than :MAX-DECODED-OCTETS is refused, even near the usual limit."
  (call-with-outcomes
   '(:max-decoded-octets 900000)
   (lambda (outcome)
     (is (eql 1500 (funcall outcome (wide 1500 12000))))
     (is (eq :internal (funcall outcome (wide 2080 10800)))))))
