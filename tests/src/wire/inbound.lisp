;;;; From the payload of DATA to messages, and the window that is returned for it.

(in-package #:clgrpc.tests.wire)

(test messages-cut-anywhere
  "In two pieces, cut at each place, and octet by octet."
  (let* ((sizes '(3 0 300 20))
         (octets (apply #'letter-octets sizes)))
    (loop for cut from 0 to (length octets) by 5
          do (with-link (link)
               (let ((call (calls 1)))
                 (brings 1 (subseq octets 0 cut))
                 (brings 1 (subseq octets cut) :end-stream)
                 (is (equal sizes (received call)))
                 (is-true (rpc::call-half-closed call)))))
    (with-link (link)
      (let ((call (calls 1)))
        (loop for octet across octets do (brings 1 (octets-of octet)))
        (is (equal sizes (received call)))))))

(test short-messages-of-a-read-wait-together
  "They are in few batches, whatever their number; long ones wait alone, in order."
  (with-link (link)
    (let ((call (calls 1)))
      (brings 1 (apply #'letter-octets (loop repeat 500 collect 5)))
      ;; each batch is charged with 64 octets besides its own
      (is (< (rpc:queued-octets call) 20000))
      (is (= 500 (length (received call))))
      (brings 1 (letter-octets 1))
      (loop for part in (let ((octets (letter-octets 20000)))
                          (list (subseq octets 0 16000) (subseq octets 16000)))
            do (brings 1 part))
      (brings 1 (letter-octets 2))
      (is (equal '(1 20000 2) (received call))))))

(test prefixes-that-are-refused
  "Messages that are too long, at once and before their octets arrive; unknown flags."
  (flet ((status (octets)
           (with-link (link :options '(:max-receive-octets 1000))
             (let ((call (calls 1)))
               (brings 1 octets)
               (rpc:call-status call)))))
    (is (null (status (octets-of 0 0 0 3 232))))
    (is (eq :resource-exhausted (status (octets-of 0 0 0 3 233))))
    (is (eq :resource-exhausted (status (octets-of 0 255 255 255 255))))
    (loop for flag from 1 to 255
          do (is (eq :internal (status (octets-of flag 0 0 0 1 0)))))))

(test later-frames-of-a-read-are-like-the-first
  "Messages of several frames of one read, whole or cut at any place, wait together and are counted;
a limit or a flag that refuses a message does so in each frame."
  (let ((octets (letter-octets 3 0 20)))
    (flet ((frame (octets &rest options) `(:data 1 ,(coerce octets 'octets) ,@options)))
      (loop for cut from 0 to (length octets)
            do (with-link (link)
                 (let ((call (calls 1)))
                   (memory:hears (frame (letter-octets 1 2)) (frame octets)
                                 (frame (subseq octets 0 cut)) (frame (subseq octets cut))
                                 (frame (letter-octets 9) :end-stream))
                   (is (= 9 (wire::wire-inbound-arrived (wire::call-wire-inbound call))))
                   (is (= 9 (wire::link-messages-received link)))
                   (is (equal '(1 2 3 0 20 3 0 20 9) (received call))))))
      (loop for (bad status) in `((,(octets-of 0 0 0 3 232) nil)
                                  (,(octets-of 0 0 0 3 233) :resource-exhausted)
                                  (,(octets-of 1 0 0 0 1 0) :internal)
                                  (,(octets-of 2 0 0 0 1 0) :internal))
            do (with-link (link :options '(:max-receive-octets 1000))
                 (let ((call (calls 1)))
                   (memory:hears (frame octets) (frame (concatenate 'octets octets bad)))
                   (is (eq status (rpc:call-status call)))))))))

(test frames-of-a-read-cause-what-they-cause-alone
  "The result is the same for frames in one read or in a read each, with an observer and without,
even if a message in the middle is refused."
  (flet ((outcome (observed alone frames)
           (with-link (link :options '(:max-receive-octets 1000))
             (let ((call (calls 1)) (sizes '()))
               (when observed
                 (setf (wire::endpoint-observer *station*)
                       (rpc:make-observer :message-received (fn (_call size) (push size sizes)))))
               (if alone
                   (mapc #'memory:hears frames)
                   (apply #'memory:hears frames))
               (list (rpc:call-status call)
                     (wire::wire-inbound-arrived (wire::call-wire-inbound call))
                     (wire::link-messages-received link)
                     sizes
                     (ignore-errors (received call)))))))
    (dolist (middle (list (letter-octets 4) (letter-octets 997) (letter-octets 998)
                          (octets-of 1 0 0 0 1 0) (octets-of 2 0 0 0 1 0)))
      (let ((frames (list `(:data 1 ,(letter-octets 1 2))
                          `(:data 1 ,(concatenate 'octets (letter-octets 3) middle
                                                  (letter-octets 5)))
                          `(:data 1 ,(letter-octets 6)))))
        (dolist (observed '(nil t))
          (let ((together (outcome observed nil frames)))
            (is (equal (outcome observed t frames) together) "~A" together)))))))

(test observers-see-the-messages-of-each-frame
  (with-link (link)
    (let ((call (calls 1)) (sizes '()))
      (setf (wire::endpoint-observer *station*)
            (rpc:make-observer :message-received (fn (_call size) (push size sizes))))
      (memory:hears `(:data 1 ,(letter-octets 3)) `(:data 1 ,(letter-octets 4 5)))
      (is (equal '(5 6 7) (reverse sizes)))
      (is (equal '(3 4 5) (received call))))))

(test octets-that-are-no-message
  "The receiver gets the error, which ends the call."
  (with-link (link)
    (let ((call (calls 1)))
      (brings 1 (octets-of 0 0 0 0 2 10 9))
      (signals status:internal (rpc:receive call))
      (memory:run-turns memory:*world*)
      (is (eq :internal (rpc:call-status call))))))

(test a-megabyte-comes-in-one-go
  "The sender of a message of 1 MB need not wait for window, and no window is sent meanwhile."
  (with-link (link)
    (let ((call (calls 1)) (octets (letter-octets 1048576)))
      (memory:said)
      (loop for at from 0 below (length octets) by 16384
            do (brings 1 (subseq octets at (min (length octets) (+ at 16384)))))
      (memory:silent)
      (is (equal '(1048576) (received call))))))

(test window-is-withheld-of-who-does-not-read
  "Up to a window may wait; then the stream's window is returned only when half of it was taken. The
connection's is returned nevertheless."
  (with-link (link :options '(:stream-window-octets 65535 :connection-window-octets 65535))
    (let ((call (calls 1))
          (letters (apply #'letter-octets (loop repeat 16 collect 990))))
      (memory:said)
      (flet ((updates (id) (remove id (windows (memory:said)) :key #'first :test #'/=)))
        (dotimes (i 4) (brings 1 letters))
        (memory:said)
        (dotimes (i 2) (brings 1 letters))
        (let ((frames (memory:said)))
          (is (null (remove 1 (windows frames) :key #'first :test #'/=))
              "the stream's window came back unread: ~S" frames))
        (dotimes (i 60) (rpc:receive call))
        (memory:run-turns memory:*world*)
        (is (null (updates 1)))
        (dotimes (i 8) (rpc:receive call))
        (memory:run-turns memory:*world*)
        (is-true (updates 1))
        (is (= 28 (length (received call))))))))

(test window-of-a-stream-that-has-gone-is-not-returned
  (with-link (link)
    (let* ((call (calls 1)) (inbound (wire::ensure-wire-inbound call)))
      (setf (wire::wire-inbound-withheld inbound) 5)
      (with-changed (((wire::wire-call-stream call) nil))
        (is (null (wire::release-window call))))
      (is (zerop (wire::wire-inbound-withheld inbound))))))
