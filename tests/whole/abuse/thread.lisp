;;;; Handlers and callbacks that block on the loop: each takes a thread, another having to run the
;;;; loop, and that counts for its connection like those of handlers that began on a thread.

(in-package #:clgrpc.tests.abuse)
(in-suite :clgrpc.abuse)

(defun most-running (server)
  "How many threads the peer that has most holds."
  (loop for entry being the hash-values of
        (server::admission-peers (server::server-admission server))
        maximize (loop:share-running (server::peer-entry-share entry))))

(defun thread-counts (server)
  "How many threads each connection of SERVER holds that has had one, the most first."
  (sort (loop for share in (remove nil (mapcar #'wire::link-share (server-links server)))
              collect (loop:share-running share))
        #'>))

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
        (is-true (wait-until (lambda () (<= 20 (most-running server)))))
        (with-attacker (decent address)
          (dotimes (i 5) (is-true (talk decent) "~A" execution)))
        (with-attacker (decent address :from *other*)
          (dotimes (i 5) (is-true (talk decent) "~A" execution)))
        (is (<= (first (thread-counts server)) 30) "~A: ~S" execution (thread-counts server))
        (is-true (wait-until (lambda () (events-of :refused)) :seconds 20))
        (is (search "of 127.0.0.1 (reserve-wait-seconds)" (refused-text))))
      (is-true (wait-until (lambda () (eql 0 (most-running server))))))))

(test handlers-that-block-on-the-loop
  "Handlers that are said not to block, and do."
  (let ((handler #'answer))
    (with-stalled (address handler :execution :inline :reserve-threads 64)
      (with-attacker (attacker address)
        (dotimes (i 200) (demand attacker "/lab.Bench/Ask" (note-octets 77)))
        (with-attacker (decent address)
          (dotimes (i 20) (is-true (served-p decent))))))))

(test callbacks-that-block
  "Callbacks of the reactive style that block, on two hundred streams of one connection: another's
run, and all of the first do in the end."
  (let ((called (list 0)) (over nil)
        (lock (sb-thread:make-mutex)) (told (sb-thread:make-waitqueue)))
    (flet ((block-or-echo (stream call)
             (grpc:on-message stream (lambda (note)
                                       (when (<= 70 (number-of note))
                                         (sb-ext:atomic-incf (car called))
                                         (sb-thread:with-mutex (lock)
                                           (loop until over
                                                 do (sb-thread:condition-wait told lock))))
                                       (grpc:send call note)))
             (grpc:on-half-close stream (lambda () (grpc:finish call)))
             call)
           (release ()
             (sb-thread:with-mutex (lock)
               (setf over t)
               (sb-thread:condition-broadcast told))))
      (with-victim (address :server server :watched nil :options '(:reserve-threads 64)
                            :handlers (list :ask #'answer :chat #'block-or-echo))
        (unwind-protect
             (with-attacker (attacker address)
               (let ((ids (loop repeat 200
                                collect (demand attacker "/lab.Bench/Chat" (note-octets 77)))))
                 (is-true (wait-until (lambda () (<= 20 (car called)))))
                 (with-attacker (decent address)
                   (dotimes (i 5) (is-true (talk decent)))
                   (is-true (served-p decent)))
                 (is (<= (first (thread-counts server)) 30) "~S" (thread-counts server))
                 (throw-frames attacker `(:rst-stream ,(first (last ids)) :cancel))
                 (release)
                 (is-true (wait-until (lambda () (<= 199 (car called)))))))
          (release))
        (is-true (wait-until (lambda () (eql 0 (most-running server)))))))))
