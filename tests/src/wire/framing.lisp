;;;; Messages put together from pieces.

(in-package #:clgrpc.tests.wire)

(defun put-together (octets sizes)
  "Give a PARTIAL the OCTETS, a message with its prefix, in pieces of SIZES in turn. Return two
values: the body, and the length of the longest vector that it needed."
  (let ((partial (wire::make-partial)) (at 0) (longest 0))
    (loop for size in sizes
          for end = (min (length octets) (+ at size))
          do (loop while (< at end)
                   do (setf at (if (< (wire::partial-prefix-fill partial) wire:+prefix-octets+)
                                   (wire::add-to-prefix partial octets at end)
                                   (wire::add-to-partial partial octets at end)))
                      (setf longest (max longest (length (wire::partial-body partial)))))
             (when (= at (length octets)) (return)))
    (is-true (wire::partial-complete-p partial))
    (values (subseq-octets (wire::partial-body partial) 0 (wire::partial-length partial)) longest)))

(defun message-octets (length)
  (let ((octets (make-octets (+ wire:+prefix-octets+ length))))
    (wire::write-prefix octets 0 length)
    (loop for i from wire:+prefix-octets+ below (length octets)
          do (setf (aref octets i) (mod (* 7 i) 251)))
    octets))

(test prefix
  "One octet that marks it as not compressed, four of length, the most significant first."
  (let ((octets (make-octets 7)))
    (is (= 6 (wire::write-prefix octets 1 #x01020304)))
    (is (equalp (octets-of 0 0 1 2 3 4 0) octets))))

(test pieces
  "A message is joined however it is cut."
  (dolist (length '(0 1 4 5 6 100 70000))
    (let ((octets (message-octets length)))
      (dolist (size '(1 2 3 7 64 16384))
        (when (< (/ length size) 5000)
          (let ((sizes (make-list (ceiling (length octets) size) :initial-element size)))
            (is (equalp (subseq-octets octets wire:+prefix-octets+ (length octets))
                        (put-together octets sizes)))))))))

(test claims-cost-nothing
  "An announced length allocates nothing, only octets that arrive do."
  (let ((partial (wire::make-partial))
        (octets (make-octets 1000)))
    (wire::write-prefix octets 0 #xFFFFFFFF)
    (let ((at (wire::add-to-prefix partial octets 0 1000)))
      (is (= 5 at))
      (is (= 1000 (wire::add-to-partial partial octets at 1000))))
    (is (not (wire::partial-complete-p partial)))
    (is (= #xFFFFFFFF (wire::partial-length partial)))
    (is (<= (length (wire::partial-body partial)) 65536))))

(test half-messages-are-bounded
  "A message that is being joined takes little more than four times its received octets."
  (let ((partial (wire::make-partial))
        (octets (make-octets 3000000)))
    (wire::write-prefix octets 0 (1- (ash 1 31)))
    (loop with at = 0
          while (< at (length octets))
          do (let ((end (min (length octets) (+ at 16384))))
               (setf at (if (< (wire::partial-prefix-fill partial) wire:+prefix-octets+)
                            (wire::add-to-prefix partial octets at end)
                            (wire::add-to-partial partial octets at end)))
               (unless (<= (length (wire::partial-body partial))
                           (max 65536 (* 5 (wire::partial-fill partial))))
                 (fail "~D octets for ~D" (length (wire::partial-body partial))
                       (wire::partial-fill partial)))))
    (is (< 2900000 (wire::partial-fill partial)))
    (give-octets-back (wire::partial-body partial))))

(test growth-is-geometric
  "A megabyte in small pieces is not copied over and over."
  (let* ((octets (message-octets 1048576))
         (before (sb-ext:get-bytes-consed)))
    (put-together octets (make-list 10000 :initial-element 1000))
    (is (< (- (sb-ext:get-bytes-consed) before) 8000000))))

(test the-last-vector-has-the-length
  "The longest vector is made early, so that little is copied into it; a long message is joined in
octets of its own length."
  (flet ((lengths (length)
           (let ((lengths '()) (fill 0))
             (loop while (< fill length)
                   do (let ((new (wire::grown-length length fill 16384)))
                        (push new lengths)
                        (setf fill new)))
             (nreverse lengths))))
    (is (equal '(16384 65536 1048591) (lengths 1048591)))
    (is (equal '(16384 65536 262144 1048576 16777231)
               (lengths 16777231)))
    (is (equal '(20000) (lengths 20000))))
  (is (= 1048591 (length (wire::fresh-body 1048591 1048591))))
  (is (< 262144 (length (wire::fresh-body 262145 1048591)))))

(test short-vectors-of-long-messages-come-back
  "The first vectors of a long message are the store's: messages leave no garbage except, if they
are long, the one vector of their own length."
  (dolist (length '(20000 100000 1048591))
    (let ((octets (message-octets length)))
      (flet ((put ()
               (let ((partial (wire::make-partial)))
                 (loop with at = (wire::add-to-prefix partial octets 0 (length octets))
                       while (< at (length octets))
                       do (setf at (wire::add-to-partial
                                    partial octets at (min (length octets) (+ at 16384)))))
                 (give-octets-back (wire::partial-body partial)))))
        (put)
        (let ((before (sb-ext:get-bytes-consed)))
          (loop repeat 50 do (put))
          (let ((each (/ (- (sb-ext:get-bytes-consed) before) 50)))
            (is (<= each (if (< length wire::+own-octets+) 5000 (+ length 20000)))
                "~,1F octets for each" each)))))))

(test byte-buffers-are-taken-once
  "If two threads wrongly receive on one call, one gets the octets: otherwise the store would have
them twice, and give them to two calls."
  (dolist (length '(0 20000))
    (let* ((octets (make-octets length))
           (byte-buffer (wire::make-byte-buffer octets length)))
      (is (eq octets (wire:byte-buffer-taken byte-buffer)))
      (signals misuse (wire:byte-buffer-taken byte-buffer))))
  (loop repeat 200
        do (let* ((byte-buffer (wire::make-byte-buffer (make-octets 10) 10))
                  (go (sb-thread:make-semaphore))
                  (threads (loop repeat 2
                                 collect (in-thread
                                           (sb-thread:wait-on-semaphore go)
                                           (handler-case
                                               (progn (wire:byte-buffer-taken byte-buffer) 1)
                                             (misuse () 0))))))
             (sb-thread:signal-semaphore go 2)
             (is (= 1 (reduce #'+ (mapcar #'sb-thread:join-thread threads)))))))
