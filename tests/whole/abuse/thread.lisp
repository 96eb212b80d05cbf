;;;; Handlers and callbacks that block on the loop: each takes a thread, another having to run the
;;;; loop, and that counts for its connection like those of handlers that began on a thread.

(in-package #:clgrpc.tests.abuse)

(defun most-running (server)
  "How many threads the peer that has most holds."
  (loop for entry being the hash-values of
        (server::admission-peers (server::server-admission server))
        maximize (loop:quota-running (server::peer-entry-quota entry))))

(defun link-quotas (server)
  "The quotas of those connections of SERVER that have had a thread."
  (remove nil (mapcar #'wire::link-quota (server-links server))))

(defun thread-counts (server)
  "How many threads each connection of SERVER holds that has had one, the most first."
  (sort (mapcar #'loop:quota-running (link-quotas server)) #'>))

(defun talk (attacker)
  "True if a stream of ATTACKER's is echoed while it is open."
  (let ((id (demand attacker "/lab.Bench/Chat" (note-octets 1) :end nil)))
    (prog1 (find-if (lambda (form) (and (eq :data (first form)) (= id (second form))))
                    (hear attacker (lambda (form)
                                     (or (and (eq :data (first form)) (= id (second form)))
                                         (member (first form) '(:rst-stream :goaway)))))) 
      (throw-frames attacker `(:rst-stream ,id :cancel)))))

(test streams-that-wait-in-their-handlers
  "Three hundred streams of one connection whose handlers wait for messages, wherever they began:
another's are served at once, as are those of an address that comes last."
  (dolist (execution '(:auto :inline :blocking))
    (with-victim (address :server server :watched nil
                          :options (list :execution execution :reserve-threads 64
                                         :reserve-wait-seconds 1))
      (with-attacker (attacker address)
        (dotimes (i 300) (demand attacker "/lab.Bench/Chat" (note-octets 1) :end nil))
        (eventually (<= 20 (most-running server)))
        (with-attacker (decent address)
          (dotimes (i 5) (is-true (talk decent) "~A" execution)))
        (with-attacker (decent address :from *other*)
          (dotimes (i 5) (is-true (talk decent) "~A" execution)))
        (is (<= (first (thread-counts server)) 30) "~A: ~S" execution (thread-counts server))
        (eventually (events-of :refused) :seconds 20)
        (is (search "of 127.0.0.1 (reserve-wait-seconds)" (refused-text))))
      (eventually (eql 0 (most-running server))))))

(test handlers-that-block-on-the-loop
  "Handlers that are said not to block, and do."
  (let ((handler #'answer))
    (with-stalled (address handler :execution :inline :reserve-threads 64)
      (with-attacker (attacker address)
        (dotimes (i 200) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
        (with-attacker (decent address)
          (dotimes (i 20) (is-true (served-p decent))))))))

(defun echo-after (function)
  "A handler of Chat whose callback echoes; before, it calls FUNCTION with a number from 70 on."
  (lambda (stream call)
    (grpc:on-message stream (lambda (note)
                              (when (<= 70 (number-of note))
                                (funcall function (number-of note)))
                              (grpc:send call note)))
    (grpc:on-half-close stream (lambda () (grpc:finish call)))
    call))

(test callbacks-that-block
  "Callbacks of the reactive style that block, on two hundred streams of one connection: another's
run, and all of the first do in the end."
  (let ((called (list 0)) (over nil)
        (lock (sb-thread:make-mutex)) (told (sb-thread:make-waitqueue)))
    (flet ((stay (number)
             (declare (ignore number))
             (sb-ext:atomic-incf (car called))
             (sb-thread:with-mutex (lock)
               (loop until over do (sb-thread:condition-wait told lock))))
           (release ()
             (sb-thread:with-mutex (lock)
               (setf over t)
               (sb-thread:condition-broadcast told))))
      (with-victim (address :server server :watched nil :options '(:reserve-threads 64)
                            :handlers (list :ask #'answer :chat (echo-after #'stay)))
        (unwind-protect
             (with-attacker (attacker address)
               (let ((ids (loop repeat 200
                                collect (demand attacker "/lab.Bench/Chat" (note-octets 77)))))
                 (eventually (<= 20 (car called)))
                 (with-attacker (decent address)
                   (dotimes (i 5) (is-true (talk decent)))
                   (is-true (served-p decent)))
                 (is (<= (first (thread-counts server)) 30) "~S" (thread-counts server))
                 (throw-frames attacker `(:rst-stream ,(first (last ids)) :cancel))
                 (release)
                 (eventually (<= 199 (car called)))))
          (release))
        (eventually (eql 0 (most-running server)))))))

(defun loops-rest-p (server)
  "True if no loop of SERVER has made a turn in the fifth of a second that this takes."
  (flet ((turns ()
           (loop for server-loop in (server:server-loops server)
                 sum (loop:event-loop-turns (server:server-loop-loop server-loop)))))
    (let ((before (turns)))
      (await-signal (make-signal) :seconds 0.2)
      (= before (turns)))))

(defun crowded-p (server count)
  "True if COUNT connections of SERVER hold threads, and none of these may have another."
  (let ((quotas (remove 0 (link-quotas server) :key #'loop:quota-running))
        (loop (server:server-loop-loop (first (server:server-loops server)))))
    (and (= count (length quotas))
         (notany (lambda (quota) (loop:quota-open-p (loop:event-loop-reserve loop) quota))
                 quotas))))

(test callbacks-that-wait-let-the-loop-rest
  "Callbacks that wait for a thread cost nothing meanwhile, and once a blocked one has returned one
of them gets its thread."
  (let ((called (list 0)) (release (make-signal)))
    (flet ((stay (number)
             (declare (ignore number))
             (sb-ext:atomic-incf (car called))
             (await-signal release :seconds 300)))
      (with-victim (address :server server :watched nil :options '(:reserve-threads 16)
                            :handlers (list :ask #'answer :chat (echo-after #'stay)))
        (with-attacker (attacker address)
          (unwind-protect
               (progn
                 (dotimes (i 40) (demand attacker "/lab.Bench/Chat" (note-octets 77)))
                 (eventually (crowded-p server 1))
                 (let ((before (car called)))
                   (signal-it release)
                   (eventually (= (1+ before) (car called)))
                   (is-true (wait-until (lambda () (loops-rest-p server)))
                            "The loop looks again and again.")
                   (is (= (1+ before) (car called)))))
            (dotimes (i 40) (signal-it release)))
          (eventually (= 40 (car called))))
        (eventually (eql 0 (most-running server)))))))

(test callbacks-that-wait-for-the-threads-of-others
  "Callbacks of a connection that wait since others hold the threads run when those return, though
one of the connection's own still blocks."
  (let ((called (list (list 0) (list 0))) (releases (list (make-signal) (make-signal))))
    (flet ((stay (number)
             (sb-ext:atomic-incf (car (nth (- number 77) called)))
             (await-signal (nth (- number 77) releases) :seconds 300))
           (called (which) (car (nth which called)))
           (demand-some (attacker count number)
             (dotimes (i count)
               (demand attacker "/lab.Bench/Chat" (note-octets number) :end nil))))
      (with-victim (address :server server :watched nil :options '(:reserve-threads 16)
                            :handlers (list :ask #'answer :chat (echo-after #'stay)))
        (with-connected (others 3 address :from *other*)
          (unwind-protect
               (progn
                 (dolist (other others)
                   (greet other)
                   (demand-some other 20 77))
                 (eventually (crowded-p server 3))
                 (with-attacker (attacker address)
                   (demand-some attacker 2 78)
                   (eventually (crowded-p server 4))
                   (is (= 1 (called 1)))
                   (dotimes (i 60) (signal-it (car releases)))
                   (eventually (= 2 (called 1)))
                   (dotimes (i 2) (signal-it (cadr releases)))))
            (dotimes (i 60) (signal-it (car releases)))
            (dotimes (i 2) (signal-it (cadr releases)))))
        (eventually (eql 0 (most-running server)))))))

(test callbacks-that-wait-come-before-later-handlers
  "A callback that waits for a thread of its connection gets one in its turn, though handlers of the
connection wait for threads all the while."
  (let ((called (list 0)) (stay (make-signal)) (release (make-signal)))
    (flet ((block-first (number)
             (sb-ext:atomic-incf (car called))
             (when (= 77 number) (await-signal stay :seconds 300)))
           (block-fives (note call)
             (when (= 5 (number-of note)) (await-signal release :seconds 300))
             (answer note call)))
      (with-victim (address :server server :watched nil
                            :options '(:reserve-threads 16 :reserve-wait-seconds 300)
                            :handlers (list :ask #'block-fives :chat (echo-after #'block-first)))
        (with-attacker (attacker address)
          (flet ((open-chat ()
                   (let ((id (demand attacker "/lab.Bench/Chat" (note-octets 1) :end nil)))
                     (hear attacker (lambda (form)
                                      (and (eq :data (first form)) (= id (second form)))))
                     id))
                 (say (id number) (throw-frames attacker `(:data ,id ,(note-octets number))))
                 (ask (count)
                   (dotimes (i count) (demand attacker "/lab.Bench/Ask" (note-octets 5)))))
            (unwind-protect
                 (let ((first (open-chat)) (second (open-chat)))
                   (say first 77)
                   (eventually (= 1 (car called)))
                   (ask 30)
                   (eventually (crowded-p server 1))
                   (say second 78)
                   (ask 100)
                   (dotimes (i 60) (signal-it release))
                   (eventually (= 2 (car called)) :seconds 20))
              (signal-it stay)
              (dotimes (i 130) (signal-it release)))))
        (eventually (eql 0 (most-running server)))))))
