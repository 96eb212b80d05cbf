;;;; The names that a file sees while it is linked, and its errors.

(in-package #:clgrpc.tests.protobuf)

(defmacro with-linker ((file &rest arguments) &body body)
  "Evaluate BODY as if a linker with ARGUMENTS were linking FILE, whose names are entered."
  `(let ((protobuf::*linker* (protobuf::make-linker :file ,file ,@arguments)))
     (protobuf::enter-file (protobuf::linked-file))
     ,@body))

(defun resolved (name inside &rest more)
  "The full name that NAME denotes inside INSIDE, :PACKAGE, or nil."
  (let* ((declared (apply #'protobuf::resolve-name name inside more))
         (thing (and declared (protobuf::declared-thing declared))))
    (if (protobuf::descriptor-p thing) (descriptor-full-name thing) thing)))

(test the-innermost-scope-with-the-first-part-decides
  (with-linker ((linked "syntax = 'proto2'; package a.b; message X { message Y { message Z { } }
  optional int32 i = 1; } message Y { } enum E { V = 0; }"))
    (is (equal "a.b.X.Y" (resolved "Y" "a.b.X.i")))
    (is (equal "a.b.Y" (resolved "Y" "a.b.E")))
    (is (equal "a.b.Y" (resolved ".a.b.Y" "a.b.X.i")))
    (is (equal "a.b.X.Y.Z" (resolved "Y.Z" "a.b.X.i")))
    (is (equal "a.b.E" (resolved "b.E" "a.b.X.i")) "Parts of packages are scopes.")
    (is (eq :package (resolved "a.b" "a.b.X.i")))
    (is (null (resolved "Y.Nothing" "a.b.X.i")))
    (is (equal "a.b.X.Y.Nothing" (protobuf::linker-nearest protobuf::*linker*))
        "The scope that has decided is noted.")
    (is (null (resolved "Z" "a.b.E")))
    (is (null (protobuf::linker-nearest protobuf::*linker*)))
    (is (equal "a.b.Y" (resolved "Y" "a.b.X.i" (lambda (thing)
                                                  (equal "a.b.Y" (descriptor-full-name thing)))))
        "A name of one part may be passed over.")
    (is (null (resolved (make-string (1+ protobuf::+longest-name+) :initial-element #\Y)
                        "a.b.E")))))

(test names-of-files-that-are-not-imported-are-hidden
  (let ((other (linked "syntax = 'proto2'; package other; message M { }")))
    (with-linker ((linked "syntax = 'proto2'; package here; message N { }"))
      (protobuf::enter-file other)
      (is (null (resolved "other.M" "here.N")))
      (is (eq other (protobuf::linker-hidden protobuf::*linker*)) "The error names the file.")
      (setf (gethash other (protobuf::linker-sight protobuf::*linker*)) :options)
      (is (null (resolved "other.M" "here.N")) "The file is in sight for options only.")
      (setf (gethash other (protobuf::linker-sight protobuf::*linker*)) t)
      (is (equal "other.M" (resolved "other.M" "here.N"))))))

(test things-inside-are-found-by-owner-and-number
  (let* ((file (linked "syntax = 'proto2'; package p; enum E { option allow_alias = true;
  A = 0; B = 5; C = 5; } message M { optional int32 f = 3; extensions 10 to 20; }
extend M { optional int32 x = 11; }"))
         (enum (first (file-descriptor-enums file)))
         (message (first (file-descriptor-messages file))))
    (with-linker (file)
      (is (equal "B" (descriptor-name (protobuf::enum-value-numbered enum 5)))
          "the first of two values is found")
      (is (null (protobuf::enum-value-numbered enum 1)))
      (is (equal "p.C" (descriptor-full-name (protobuf::enum-value-named enum "C"))))
      (is (null (protobuf::enum-value-named enum "f")))
      (is (equal "f" (descriptor-name (protobuf::field-inside message "f"))))
      (is (null (protobuf::field-inside message "x")) "An extension is not found inside.")
      (is (equal "f" (descriptor-name (protobuf::field-numbered message 3))))
      (is (equal "x" (descriptor-name (protobuf::field-numbered message 11)))))))

(test imports-are-walked-as-far-as-they-are-wanted
  (let ((graph '(("a" "b" "c") ("b" "d" "a") ("c" "d" "missing") ("d")))
        (shown '()) (seen '()))
    (protobuf::map-import-closure
     (lambda (node)
       (push (first node) shown)
       (unless (member node seen)
         (push node seen)
         t))
     '("a") (lambda (name) (assoc name graph :test #'string=)) #'rest)
    (is (equal '("a" "b" "d" "a" "c" "d") (reverse shown))
        "A file that was visited is passed to the function again, but its imports are not.")))

(test errors-of-a-read-file-are-bounded
  (let ((file (linked "syntax = 'proto2'; message M { }")))
    (flet ((kept (read-p)
             (with-linker (file :read-p read-p)
               (loop for i from 1 to (+ 20 protobuf::+most-problems+)
                     do (is (null (protobuf::complain file :name "mistake ~D" i))))
               (is-true (protobuf::faulty-p file))
               (let ((problems (protobuf::linker-problems protobuf::*linker*)))
                 (is (equal "mistake 1" (proto-syntax-error-text (first (last problems)))))
                 (length problems)))))
      (is (= protobuf::+most-problems+ (kept t)))
      (is (= (+ 20 protobuf::+most-problems+) (kept nil)) "All errors of a source are shown."))))
