;;;; The hash index of maps, compared with an alist.

(in-package #:clgrpc.tests.protobuf)

(defun wide (text)
  "The characters of TEXT in a string of the other kind."
  (coerce text '(simple-array character (*))))

(defun position-of (index keys key)
  (protobuf::index-position index keys key))

(test keys-are-compared-by-value
  (let ((big (expt 2 63)))
    (loop for (a b equal)
            in `((1 1 t) (1 2 nil) (,big ,(+ big 0) t) (,big ,(1+ big) nil)
                 (t t t) (t nil nil) (nil 0 nil) (1 t nil)
                 ("ab" ,(wide "ab") t) ("ab" ,(wide "abc") nil) ("ab" ,(wide "aB") nil)
                 ("" ,(wide "") t) ("1" 1 nil))
          do (let ((a (if (stringp a) (coerce a 'simple-base-string) a)))
               (is (eq equal (and (protobuf::key= a b) t)) "~S and ~S" a b)
               (when equal
                 (is (= (protobuf::hash-key a 12345) (protobuf::hash-key b 12345))
                     "Equal keys have one hash: ~S" a))))))

(test the-hash-depends-on-the-seed
  (with-seed ()
    (let ((keys (loop for i below 100 collect (wide (format nil "key ~D" i)))))
      ;; of 62 bits, as seeds are, and not by chance all but 0
      (flet ((hashes (seed)
               (mapcar (lambda (key) (protobuf::hash-key key (logior (ash 1 61) seed))) keys)))
        (let ((one (hashes (random (ash 1 61)))) (other (hashes (random (ash 1 61)))))
          (is (< 90 (count nil (mapcar #'= one other))))
          (is (< 90 (length (remove-duplicates one)))))))))

(test an-index-finds-what-was-entered
  (with-seed ()
    (let* ((count 200)
           (keys (coerce (loop for i below (* 2 count)
                               collect (if (evenp i) (- (* i 7919)) (wide (format nil "~D" i))))
                         'simple-vector))
           (index (protobuf::build-index keys count)))
      (is (loop for i below count always (= i (position-of index keys (svref keys i)))))
      (is (loop for i from count below (* 2 count)
                never (position-of index keys (svref keys i))))
      ;; there is room for as many keys again; then the index is full
      (loop for i from count below (* 2 count)
            until (protobuf::index-full-p index)
            do (protobuf::enter-key index (svref keys i) i)
            finally (is (< (+ count 100) i)))
      (let ((removed (loop repeat 50 collect (random count))))
        (dolist (i removed)
          (when (position-of index keys (svref keys i))
            (protobuf::move-key index keys (svref keys i) nil)))
        (is (loop for i below count
                  always (eql (if (member i removed) nil i)
                              (position-of index keys (svref keys i)))))))))

(test a-key-can-move
  (let* ((keys (vector 10 20 30))
         (index (protobuf::build-index keys 3)))
    (protobuf::move-key index keys 10 nil)
    (is (null (position-of index keys 10)))
    ;; a map fills the hole with its last entry
    (protobuf::move-key index keys 30 0)
    (setf (svref keys 0) 30)
    (is (= 0 (position-of index keys 30)))
    (is (= 1 (position-of index keys 20)))))
