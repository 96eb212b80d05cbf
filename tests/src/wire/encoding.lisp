;;;; The compressed messages of a call, sent and received.

(in-package #:clgrpc.tests.wire)

(defun encoded-octets (call size compress)
  "The sent octets of a letter of SIZE zeros; COMPRESS as for SEND."
  (let ((encoded (wire:encode-message call (letter size) compress)))
    (if (typep encoded 'wire:byte-buffer)
        (subseq (wire:encoded-octets encoded) 0 (wire:encoded-length encoded))
        encoded)))

(test messages-that-are-compressed
  "Long messages of calls that compress, unless SEND forbids it; messages that would not become
shorter only if SEND requires it."
  (with-link (link :options '(:compress-minimum-octets 256))
    (let ((call (calls 1)))
      (flet ((flag (size compress) (aref (encoded-octets call size compress) 0)))
        (is (= 0 (flag 1000 :auto)))
        (is (eq :identity (rpc:call-compression call)))
        (setf (wire:outgoing-encoding call)
              (nth-value 1 (encoding:check-compression :gzip)))
        (is (eq :gzip (rpc:call-compression call)))
        (is (= 1 (flag 1000 :auto)))
        (is (= 0 (flag 1000 nil)))
        (is (equal '(0 1) (list (flag 252 :auto) (flag 253 :auto)))) ; 255 and 256 octets in all
        (is (= 1 (flag 10 t)))
        (is (> 100 (length (encoded-octets call 1000 :auto))))))))

(test messages-that-come-compressed
  "They wait as they arrived, and receivers get them whole; without grpc-encoding they are an
error."
  (with-link (link)
    (let ((call (calls 1)) (octets nil))
      (setf (wire:outgoing-encoding call) (nth-value 1 (encoding:check-compression :gzip))
            octets (encoded-octets call 3000 t)
            (wire:incoming-encoding call) (nth-value 1 (encoding:check-compression :gzip)))
      (brings 1 octets)
      (brings 1 (letter-octets 7))
      (is (< (wire::link-held link) 1000))
      (is (equal '(3000) (list (length (letters:letter-text (rpc:receive call))))))
      (is-true (rpc:received-compressed-p call))
      (is (equal '(7) (received call)))
      (is (null (rpc:received-compressed-p call)))
      (let ((other (calls 3)))
        (brings 3 octets)
        (is (eq :internal (rpc:call-status other)))))))

(test compressed-messages-that-grow-too-long
  "Their length has the same limit as that of others."
  (with-link (link :options '(:max-receive-octets 1000))
    (let ((call (calls 1)) (octets nil))
      (setf (wire:outgoing-encoding call) (nth-value 1 (encoding:check-compression :gzip))
            octets (encoded-octets call 100000 t)
            (wire:incoming-encoding call) (nth-value 1 (encoding:check-compression :gzip)))
      (is (< (length octets) 1000))
      (brings 1 octets)
      (signals status:resource-exhausted (rpc:receive call)))))
