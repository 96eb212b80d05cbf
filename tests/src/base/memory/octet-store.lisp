;;;; The store of long vectors: lengths, exclusive owners, the limit, many threads.

(in-package #:clgrpc.tests.base)

(test store-lengths
  "Never too short, never over a quarter too long; a shelf's own length is a fixed point."
  (let ((shortest clgrpc.base::+shortest-stored+))
    (loop for shelf below clgrpc.base::+shelves+
          for length = (clgrpc.base::shelf-length shelf)
          do (is (= shelf (clgrpc.base::shelf-of length)))
             (when (< shelf (1- clgrpc.base::+shelves+))
               (is (= (1+ shelf) (clgrpc.base::shelf-of (1+ length))))))
    (dolist (length (list 0 1 100 (1- shortest)))
      (is (= length (length (borrow-octets length)))))
    (dolist (length (list shortest (1+ shortest) 65536 1048601 16777241 (* 64 1024 1024)))
      (let ((octets (borrow-octets length)))
        (is (<= length (length octets) (* 5/4 length)))
        (give-octets-back octets)))
    (let ((length (1+ (* 64 1024 1024))))
      (is (= length (length (borrow-octets length)))))
    (clgrpc.base::clear-store)))

(test store-gives-each-vector-once
  (clgrpc.base::clear-store)
  (let* ((a (borrow-octets 50000))
         (b (borrow-octets 50000)))
    (is (not (eq a b)))
    (give-octets-back a)
    (is (= (length a) (clgrpc.base::stored-octets)))
    (is (eq a (borrow-octets 50000)))
    (is (zerop (clgrpc.base::stored-octets)))
    (is (not (member (borrow-octets 50000) (list a b))))
    ;; not ours by its length
    (give-octets-back (make-octets 100))
    (give-octets-back (make-octets 50000))
    (is (zerop (clgrpc.base::stored-octets)))))

(test store-is-bounded
  "It starts again rather than keep lengths that are no longer needed."
  (clgrpc.base::clear-store)
  (let ((limit clgrpc.base::+store-octets+)
        (small (loop repeat 1000 collect (borrow-octets 40960)))
        (large (borrow-octets (* 40 1024 1024))))
    (mapc #'give-octets-back small)
    (is (= (* 1000 40960) (clgrpc.base::stored-octets)))
    (give-octets-back large)
    (is (<= (clgrpc.base::stored-octets) limit))
    (is (eq large (borrow-octets (* 40 1024 1024)))))
  (clgrpc.base::clear-store)
  (is (zerop (clgrpc.base::stored-octets))))

(test store-from-many-threads
  "No thread gets a vector that another has."
  (let* ((collisions 0)
         (threads
           (loop for number from 1 to 4
                 collect (let ((number number))
                           (in-thread
                             (loop repeat 3000
                                   do (let ((octets (borrow-octets 32768)))
                                        (setf (aref octets 0) number)
                                        (sb-thread:thread-yield)
                                        (unless (= number (aref octets 0)) (incf collisions))
                                        (give-octets-back octets))))))))
    (mapc #'sb-thread:join-thread threads)
    (is (zerop collisions))
    (is (<= (clgrpc.base::stored-octets) (* 4 32768)))
    (clgrpc.base::clear-store)))
