;;;; The loops of channels, and their lifetimes.

(in-package #:clgrpc.tests.client)

(defun channel-loop (channel)
  (client:core-loop (client::channel-core channel)))

(defun loops-of (channels)
  (remove-duplicates (mapcar #'channel-loop channels)))

(defun call-with-channels (count options function)
  "Call FUNCTION with COUNT channels, made with OPTIONS, to a probe that doubles notes."
  (with-probe (kept :server server) (:ask #'double)
    (grpc:close-channel kept)
    (let ((channels (loop repeat count
                          collect (apply #'grpc:make-channel (grpc:server-address server)
                                         options))))
      (unwind-protect (funcall function channels)
        (mapc #'grpc:close-channel channels)))))

(test each-channel-has-a-loop-of-its-own
  "This holds while there are fewer loops than allowed."
  (call-with-channels
   4 '()
   (lambda (channels)
     (is (= 4 (length (loops-of channels))))
     (loop for channel in channels for i from 1
           do (is (= (* 2 i) (number-of (ask channel (note i)))))))))

(test channels-share-loops-beyond-the-limit
  "The loop with the fewest subchannels is shared first."
  (call-with-channels
   7 '(:max-client-loops 3)
   (lambda (channels)
     (is (equal '(2 2 3)
                (sort (mapcar #'calling::client-loop-channels (calling::client-loops)) #'<)))
     (is (= 3 (length (loops-of channels))))
     ;; a loop that a channel has left has a place
     (let ((loop (channel-loop (fourth channels))))
       (dolist (channel (remove loop channels :key #'channel-loop :test-not #'eq))
         (unless (eq channel (fourth channels)) (grpc:close-channel channel)))
       (let ((new (grpc:make-channel (grpc:channel-target (first channels))
                                     :max-client-loops 3)))
         (unwind-protect
              (progn (is (eq loop (channel-loop new)))
                     (is (= 4 (number-of (ask new (note 2))))))
           (grpc:close-channel new)))))))

(test one-loop-may-be-all-there-is
  (call-with-channels
   3 '(:max-client-loops 1)
   (lambda (channels)
     (is (= 1 (length (loops-of channels))))
     (let ((sums (with-threads (i 3)
                   (loop for n below 50 sum (number-of (ask (elt channels i) (note n)))))))
       (is (equal '(2450 2450 2450) sums))))))

(test channels-of-one-image-share-the-reserve
  (call-with-channels
   3 '()
   (lambda (channels)
     (is (= 1 (length (remove-duplicates (mapcar #'loop:event-loop-reserve
                                                 (loops-of channels)))))))))

(test a-loop-ends-with-its-last-channel
  "The other loops continue, and take new channels."
  (call-with-channels
   2 '()
   (lambda (channels)
     (destructuring-bind (first second) channels
       (dolist (channel channels) (ask channel (note 1)))
       (let ((descriptors (os:open-descriptor-count)) (loop (channel-loop first)))
         (grpc:close-channel first)
         (is (eq :stopped (loop:event-loop-state loop)))
         (is (> descriptors (os:open-descriptor-count)))
         (is (eq :running (loop:event-loop-state (channel-loop second))))
         (is (= 6 (number-of (ask second (note 3)))))
         (grpc:with-channel (third (grpc:channel-target second))
           (is (= 2 (length (loops-of (list second third)))))
           (is (= 8 (number-of (ask third (note 4)))))))))))

(test no-channel-no-loop
  (call-with-channels 5 '() (lambda (channels) (ask (first channels) (note 1))))
  (is (null (calling::client-loops))))

(test callers-drive-loops-of-their-own
  "Two threads that wait for answers on two channels run their loops themselves, at the same time."
  (let ((release (make-signal)) (begun (make-signal)))
    (with-probe (first :server server :options '(:execution :blocking))
        (:ask (handling (note)
                (when (plusp (number-of note))
                  (signal-it begun)
                  (await-signal release))
                note))
      (grpc:with-channel (second (grpc:server-address server))
        (flet ((both-drive-p ()
                 (let ((threads (loop for channel in (list first second)
                                      do (ask channel (note 0))
                                      collect (let ((channel channel))
                                                (in-thread (ask channel (note 1)))))))
                   (await-signal begun :count 2)
                   (prog1 (wait-until (lambda ()
                                        (loop for channel in (list first second)
                                              for thread in threads
                                              always (eq thread (clgrpc.loop::event-loop-thread
                                                                 (channel-loop channel)))))
                                      :seconds 0.5)
                     (signal-it release)
                     (signal-it release)
                     (mapc #'sb-thread:join-thread threads)))))
          ;; a reserve thread may be first, now and then
          (is-true (loop repeat 20 thereis (both-drive-p))))))))

(test timers-of-channels-within-the-image-take-no-loop
  "They use an existing loop, which a network channel can still get."
  (with-started (server (start-probe (list :chat #'echo)) :drain 0)
    (grpc:with-channel (within (grpc:server-address server))
      (declare (ignorable within))
      (let* ((inside (grpc:server-channel server)) (chat (chat inside :open :timeout 60)))
        (unwind-protect
             (progn
               (grpc:send chat (note 1))
               (is (= 1 (number-of (grpc:receive chat))))
               (is (= 1 (length (calling::client-loops))))
               (is (equal '(1 1)
                          (list (calling::client-loop-timers (first (calling::client-loops)))
                                (calling::client-loop-channels
                                 (first (calling::client-loops)))))))
          (grpc:cancel chat)
          (grpc:close-channel inside)))
      (is (= 0 (calling::client-loop-timers (first (calling::client-loops))))))))
