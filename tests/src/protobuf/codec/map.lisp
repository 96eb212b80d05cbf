;;;; Map fields: the map itself, and entries on the wire.

(in-package #:clgrpc.tests.protobuf)

(test maps-hold-few-and-many-entries
  (with-seed ()
    (dolist (size '(0 1 8 9 10 100 1000))
      (let ((map (clgrpc.test:all-m1 (all))) (model (make-hash-table :test 'equal)))
        (flet ((key () (format nil "k~D" (random (max 1 (* 2 size))))))
          (dotimes (i (* 4 size))
            (let ((key (key)))
              (if (zerop (random 3))
                  (is (eq (and (remhash key model) t) (and (map-remove map key) t)))
                  (setf (map-value map key) i
                        (gethash key model) i)))))
        (is (= (hash-table-count model) (map-count map)))
        (maphash (lambda (key value) (is (eql value (map-value map key)))) model)
        (do-map ((key value) map) (is (eql value (gethash key model))))))))

(test maps-of-integers-and-of-booleans
  (with-seed ()
    (let ((map (clgrpc.test:all-m10 (all))) (model (make-hash-table)))
      (dotimes (i 500)
        (let ((key (if (zerop (random 2)) (random 100) (- (random (expt 2 63))))))
          (setf (map-value map key) i
                (gethash key model) i)))
      (is (= (hash-table-count model) (map-count map)))
      (maphash (lambda (key value) (is (eql value (map-value map key)))) model))
    (let ((map (clgrpc.test:all-m3 (all :m3 '((t . "yes") (nil . "no"))))))
      (is (equal "yes" (map-value map t)))
      (is (equal "no" (map-value map nil))))))

(test deterministic-maps-have-their-keys-in-order
  "False precedes true, and a smaller key a greater one, in whatever order they were added."
  (flet ((keys (reader &rest arguments)
           (mapcar #'car (map-alist (funcall reader (parse-message
                                                     'clgrpc.test:all
                                                     (serialize (apply #'all arguments)
                                                                :partial t :deterministic t)
                                                     :partial t))))))
    (is (equal '(nil t) (keys #'clgrpc.test:all-m3 :m3 '((t . "yes") (nil . "no")))))
    (is (equal '(nil t) (keys #'clgrpc.test:all-m3 :m3 '((nil . "no") (t . "yes")))))
    (is (equal '("a" "b" "c")
               (keys #'clgrpc.test:all-m1 :m1 '(("b" . 1) ("c" . 2) ("a" . 3)))))))

(test absent-keys
  (let ((map (clgrpc.test:all-m1 (all :m1 '(("a" . 1))))))
    (is (equal '(1 t) (multiple-value-list (map-value map "a"))))
    (is (equal '(nil nil) (multiple-value-list (map-value map "b"))))
    (is (equal '(9 nil) (multiple-value-list (map-value map "b" 9))))))

(test keys-of-any-string-type
  (let ((map (clgrpc.test:all-m1 (all :m1 (list (cons (coerce "key" 'simple-base-string) 1))))))
    (is (eql 1 (map-value map (coerce "key" '(simple-array character (*))))))
    (is (eql 1 (map-value map (make-array 3 :element-type 'character :initial-contents "key"
                                            :adjustable t :fill-pointer 3))))))

(test maps-check-types
  (let ((message (all)))
    (signals type-error (setf (map-value (clgrpc.test:all-m1 message) 1) 1))
    (signals type-error (setf (map-value (clgrpc.test:all-m1 message) "a") "b"))
    (signals type-error (setf (map-value (clgrpc.test:all-m1 message) "a") (expt 2 31)))
    (signals type-error (setf (map-value (clgrpc.test:all-m2 message) 1) (all)))
    (signals misuse (setf (map-value (clgrpc.test:all-m5 message) 1) :mauve))
    (signals type-error (all :m1 '((1 . 1))))))

(test maps-from-alists-tables-and-maps
  (let ((table (make-hash-table :test 'equal)))
    (setf (gethash "a" table) 1)
    (is (message= (all :m1 '(("a" . 1))) (all :m1 table)))
    (is (message= (all :m1 table) (all :m1 (clgrpc.test:all-m1 (all :m1 table)))))
    (is (equal '(("a" . 1)) (map-alist (clgrpc.test:all-m1 (all :m1 table)))))))

(test entries-on-the-wire
  (is (equal "c20c050a016b1000" (hex (serialize (all :m1 '(("k" . 0)))))))
  (is (equal "ca0c0f08ffffffffffffffffff0112020803"
             (hex (serialize (all :m2 (list (cons -1 (clgrpc.test:make-inner :a 3))))))))
  (is (equal "e20c0408091005" (hex (serialize (all :m5 '((-5 . :blue)))))))
  (flet ((entries (hex)
           (map-alist (clgrpc.test:all-m1 (parse-message 'clgrpc.test:all (unhex hex))))))
    (is (equal '(("k" . 1)) (entries "c20c0510010a016b")) "the value may come before the key")
    (is (equal '(("" . 0)) (entries "c20c00")) "key and value may be absent")
    (is (equal '(("k" . 2)) (entries "c20c050a016b1001c20c050a016b1002")) "the last value counts")
    (is (equal '(("k" . 1)) (entries "c20c071801 0a016b1001"))
        "an entry may have an unknown field"))
  (let ((message (parse-message 'clgrpc.test:all (unhex "ca0c020803ca0c0a0804120208011202 1a00"))))
    (is (message= (clgrpc.test:make-inner) (map-value (clgrpc.test:all-m2 message) 3)))
    (is (message= (clgrpc.test:make-inner :a 1 :next (clgrpc.test:make-inner))
                  (map-value (clgrpc.test:all-m2 message) 4))
        "pieces of a value are merged"))
  (signals protobuf-error (parse-message 'clgrpc.test:all (unhex "c20c050a016b10")))
  (signals protobuf-error (parse-message 'clgrpc.test:all (unhex "c20c030a016b10"))))
