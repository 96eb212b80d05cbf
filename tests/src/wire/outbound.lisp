;;;; Messages that are sent.

(in-package #:clgrpc.tests.wire)

(test messages-go-out-behind-the-headers
  "Each once, those of a turn in one frame of DATA; the headers once."
  (with-link (link)
    (let ((call (calls 1)))
      (on-loop (lambda () (rpc:send call (letter 3))))
      (let ((frames (memory:said)))
        (is (equal '(:headers 1 ((":status" "200"))) (first frames)))
        (is (= 2 (length frames)))
        (is (eq :data (first (second frames)))))
      (on-loop (lambda () (rpc:send call (letter 4)) (rpc:send call (letter 5))))
      (is (equal '(:data) (mapcar #'first (memory:said))))
      (is (zerop (rpc:operate unsent-octets call))))))

(test observers-of-contents-may-send
  "A function that gets the octets of a message may send a message on another call of the
connection: both messages are sent unchanged."
  (with-link (link)
    (let ((first (calls 1)) (second (calls 3)) (seen '()))
      (setf (wire::endpoint-observer *station*)
            (rpc:make-observer
             :content-sent (fn (call octets start end _encoding)
                             (when (eq call first) (rpc:send second (letter 4)))
                             (push (subseq octets start end) seen))))
      (on-loop (lambda () (rpc:send first (letter 3))))
      (flet ((text (octets) (map 'string #'code-char octets)))
        (is (equal `((:data 1 ,(text (letter-octets 3))) (:data 3 ,(text (letter-octets 4))))
                   (remove :headers (memory:said) :key #'first))))
      (is (equalp (list (subseq (letter-octets 3) 5) (subseq (letter-octets 4) 5)) seen)))))

(test messages-wait-for-the-window
  "Octets beyond the peer's window are queued, count, and leave when there is window; their sender
is notified of the room."
  (with-link (link)
    (let ((call (calls 1)) (writable 0))
      (rpc:on-writable call (lambda () (incf writable)))
      (memory:run-turns memory:*world*)
      (setf writable 0)
      (loop repeat 3
            do (is-true (on-loop (lambda () (rpc:try-send call (letter 60000))))))
      (is (null (on-loop (lambda () (rpc:try-send call (letter 60000))))))
      (is (<= 114000 (rpc:operate unsent-octets call) 115000))
      (is (minusp (rpc:operate room call)))
      (is (zerop writable))
      (memory:said)
      (memory:hears '(:window-update 0 200000) '(:window-update 1 200000))
      (is (zerop (rpc:operate unsent-octets call)))
      (is (= 1 writable))
      (is-true (on-loop (lambda () (rpc:try-send call (letter 60000))))))))

(test messages-that-are-too-long-to-send
  (with-link (link :options '(:max-send-octets 1000))
    (let ((call (calls 1)))
      (signals status:resource-exhausted (wire:encode-message call (letter 2000) nil))
      (is (= 1 (length (on-loop (lambda ()
                                  (rpc:send call (letter 10))
                                  (list (rpc::call-outcome call))))))))))

(test encoded-messages-have-their-prefix
  "Short ones are octets, long ones a byte buffer."
  (with-link (link)
    (let ((call (calls 1)))
      (dolist (size '(0 1 1000 70000))
        (let* ((encoded (wire:encode-message call (letter size) nil))
               (octets (if (typep encoded 'wire:byte-buffer)
                           (subseq (wire:encoded-octets encoded) 0 (wire:encoded-length encoded))
                           encoded)))
          (is (equalp (letter-octets size) octets))
          (is (= (length octets) (wire:encoded-length encoded))))))))

(test long-messages-are-left-to-the-caller-and-have-room
  "The loop encodes up to 16 KiB for which there is no window; room is a quarter more than the size,
or twice the size for a compressed message."
  (with-link (link)
    (let ((call (calls 1)))
      (on-loop (lambda () (rpc:send call (letter 70000))))
      (flet ((written-p (octets)
               (on-loop (lambda () (wire::write-message call (letter octets) nil)))))
        (is-true (written-p 16381))
        (is-false (written-p 16382)))
      (is (= 1250 (wire::long-room call 1000 nil)))
      (with-replaced (('wire::wants-compression-p (constantly t)))
        (is (= 2500 (wire::long-room call 1000 :gzip)))))))

(test output-of-long-messages-stays-short
  "However slowly the peer takes a long message, the connection's buffer does not exceed the length
that the loop keeps."
  (dolist (portion '(50000 5000))
    (with-link (link)
      (let ((call (calls 1)) (end memory:*end*) (longest 0) (taken 0))
        (memory:hears '(:window-update 0 4000000) '(:window-update 1 4000000))
        (memory:said)
        (setf (memory:end-portion end) portion)
        (on-loop (lambda () (rpc:send call (letter 3000000))))
        (loop for buffer = (loop::connection-buffer (wire::link-socket link))
              do (incf taken (length (memory:take-said end)))
              while buffer
              do (setf longest (max longest (length (buffer-octets buffer)))
                       (memory:end-news end) loop:+writable+)
                 (memory:run-turns memory:*world*))
        (is (< 3000000 taken))
        (is (<= 65536 longest loop::+pooled-buffer-octets+))))))

(test output-that-leaves-at-once-is-filled-up-again
  "The peer takes all of an output that was too long for more DATA: queued DATA follows."
  (with-link (link)
    (let ((call (calls 1)) (end memory:*end*))
      (memory:hears '(:window-update 0 4000000) '(:window-update 1 4000000))
      (memory:said)
      (setf (memory:end-portion end) 1)
      (on-loop (lambda () (rpc:send call (letter 3000000))))
      (is (<= wire::+fill-octets+ (loop:connection-unsent (wire::link-socket link))))
      (setf (memory:end-portion end) nil
            (memory:end-news end) loop:+writable+)
      (memory:run-turns memory:*world*)
      (is (< 3000000 (length (memory:take-said end)))))))

(test peers-are-read-while-they-get-a-long-message
  "A connection with more unsent output than its limit is not read; queued DATA alone does not fill
the output so far. Otherwise nothing of a peer would be read, not even a PING, until the end of a
long message."
  (with-link (link :options '(:max-unsent-octets 65536))
    (let ((call (calls 1)) (end memory:*end*))
      (memory:hears '(:window-update 0 4000000) '(:window-update 1 4000000))
      (memory:said)
      (setf (memory:end-portion end) 20000)
      (on-loop (lambda () (rpc:send call (letter 3000000))))
      (memory:passes 1)
      (memory:hears '(:ping 1))
      (loop repeat 5
            do (setf (memory:end-news end) loop:+writable+)
               (memory:run-turns memory:*world*))
      (is (< (length (memory:take-said end)) 200000))
      (is (= (memory:world-now memory:*world*)
             (http2:connection-last-receive-ns (wire::link-http2 link)))))))

(test room-that-comes-just-before-it-is-wanted-is-reported
  "ON-WRITABLE is called although the loop made room after TRY-SEND's check and before its request."
  (with-link (link)
    (let ((call (calls 1)) (count 0))
      (rpc:on-writable call (lambda () (incf count)))
      (memory:run-turns memory:*world*)
      (setf count 0)
      (wire::refuse-to-send call)
      (memory:run-turns memory:*world*)
      (is (= 1 count)))))

(test links-are-crowded-while-much-waits-for-their-peer
  (with-link (link)
    (let ((call (calls 1)))
      (is-false (rpc:operate crowded call))
      (on-loop (lambda () (rpc:send call (letter 200000))))
      (memory:said)
      (is-true (rpc:operate crowded call))
      (memory:hears '(:window-update 1 200000) '(:window-update 0 200000))
      (memory:said)
      (is-false (rpc:operate crowded call)))))
