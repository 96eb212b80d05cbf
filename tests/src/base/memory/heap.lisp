;;;; The free part of the heap, and promises of it. A full heap is tested in another process, which
;;;; may not survive.

(in-package #:clgrpc.tests.base)

(defun run-in-small-heap (megabytes source)
  "Two values: the output of a fresh SBCL with a heap of this size that has loaded clgrpc/base and
evaluates the form in SOURCE, text; and its exit code."
  (multiple-value-bind (output error code)
      (uiop:run-program
       (list sb-ext:*runtime-pathname* "--noinform"
             "--dynamic-space-size" (princ-to-string megabytes)
             "--non-interactive" "--no-sysinit" "--no-userinit"
             "--eval" "(require :asdf)"
             "--eval" (format nil "(push ~S asdf:*central-registry*)"
                              (namestring (asdf:system-source-directory "clgrpc")))
             "--eval" "(asdf:load-system \"clgrpc/base\")"
             "--eval" "(in-package #:clgrpc.base)"
             "--eval" source)
       :output :string :error-output :output :ignore-error-status t)
    (declare (ignore error))
    (values output code)))

(test full-heap-ends-no-process
  "Threads that fill the heap with uninitialized vectors get a condition, each of them, and when the
vectors are dropped there is room again."
  (multiple-value-bind (output code)
      (run-in-small-heap
       256
       "(flet ((fill-heap (length)
                 (let ((kept '()))
                   (handler-case (loop (push (make-raw-vector length octet) kept))
                     (storage-condition () (length kept))))))
          (dolist (length '(50000 100000 1000000 9999999))
            (let ((threads (loop repeat 3
                                 collect (sb-thread:make-thread #'fill-heap
                                                                :arguments (list length)))))
              (assert (plusp (reduce #'+ (mapcar #'sb-thread:join-thread threads))))
              (setf threads nil)
              (sb-ext:gc :full t)
              (assert (= 50000000 (length (make-raw-vector 50000000 octet))))
              (sb-ext:gc :full t)))
          (princ :survived))")
    (is (eql 0 code) "~A" output)
    (is (search "SURVIVED" output) "~A" output)))

(defmacro holds-in-a-fresh-heap (&body body)
  "Check that BODY returns true in another SBCL: here earlier tests have left holes in the heap."
  `(is (search "HOLDS" (run-in-small-heap
                        512
                        ,(let ((*package* (find-package '#:clgrpc.tests.base)))
                           (format nil "(princ (if ~S :holds :fails))" `(progn ,@body)))))))

(test holes-are-made
  "Old garbage is collected for a vector that fits into the free part, but into none of its holes."
  (holds-in-a-fresh-heap
    (let ((kept '()))
      (handler-case (loop (push (make-raw-vector 1000000 octet) kept))
        (storage-condition ()))
      (setf kept (loop for (vector) on kept by #'cddr collect vector))
      (sb-ext:gc :full t)
      (assert (not (clgrpc.base::hole-p 60000000)))
      (assert (< 100 (length (shiftf kept '()))))
      (make-raw-vector 60000000 octet)
      (eql 0 (car clgrpc.base::**claimed**)))))

(test reading-pages-allocates-nothing-for-each
  "Reading the table of pages allocates one result, however many pages there are."
  (let* ((before (sb-ext:get-bytes-consed))
         (page-statistics (clgrpc.base::make-new-page-statistics))
         (octets (- (sb-ext:get-bytes-consed) before)))
    (is (plusp (clgrpc.base::page-statistics-used page-statistics)))
    (is (> 100000 octets) "~D octets for ~D pages" octets
        (floor (clgrpc.base::page-statistics-used page-statistics) sb-vm:gencgc-page-bytes))))

(test promises-leave-a-fifth-free
  (holds-in-a-fresh-heap
    (sb-ext:gc :full t)
    (let* ((fifth (floor (heap-size) 5))
           (free (- (heap-size) (heap-used)))
           (octets (- free fifth (floor fifth 4))))
      (and (not (promise-octets (- free (floor fifth 2))))
           (not (promise-octets (* 4 fifth)))
           (promise-octets octets)
           ;; twice
           (not (promise-octets (floor fifth 2)))
           (progn (settle-octets octets)
                  (not (promise-octets octets :reserve-fifths 2)))
           (promise-octets (floor fifth 2))))))

(test promises-for-objects-leave-room-for-copies
  "One thread may have most of the free part; several together may have half of it, since their
objects are copied."
  (holds-in-a-fresh-heap
    (sb-ext:gc :full t)
    (let* ((free (- (heap-spare) (ash (heap-size) -3))) ; for one alone
           (some (floor (- (heap-spare) (ash (heap-size) -2)) 8)))
      (and (not (promise-octets (+ free some) :copied t))
           (promise-octets (- free some) :copied t)
           (not (promise-octets some :copied t))
           (progn (settle-octets (- free some))
                  (promise-octets some :copied t))
           (promise-octets some :copied t)
           (not (promise-octets (* 3 some) :copied t))
           (promise-octets some :copied t)))))

(test collecting-for-room
  "Garbage counts until it is collected; then a promise becomes possible."
  (holds-in-a-fresh-heap
    (sb-ext:gc :full t)
    (let* ((octets (floor (* 3 (heap-size)) 5))
           (garbage (list (make-octets octets))))
      (setf (first garbage) nil)
      (and (not (promise-octets octets))
           (progn (setf clgrpc.base::**next-collection** 0)
                  (collect-for-room)
                  (promise-octets octets))))))

(test holes-count
  "A long vector at the top of the heap does not hide the free part below."
  (holds-in-a-fresh-heap
    (sb-ext:gc :full t)
    (let* ((low (list (make-octets (floor (heap-size) 2))))
           (high (make-octets (floor (heap-size) 20))))
      (and (not (clgrpc.base::hole-p (floor (heap-size) 2)))
           (progn (setf (first low) nil)
                  (sb-ext:gc :full t)
                  (clgrpc.base::hole-p (floor (heap-size) 2)))
           (= (floor (heap-size) 20) (length high))))))

(test garbage-is-found-where-not-all-could-be-copied
  "A full collection would need more room than there is; collections of younger generations find
garbage, and so make room for it."
  (holds-in-a-fresh-heap
    ;; in a thread, since what is left on a stack counts as alive
    (sb-thread:join-thread
     (in-thread (let ((kept '()))
                  (dolist (generation '(3 2 1))
                    (push (loop repeat 2800000 collect (list generation)) kept) ; 90 MB
                    (sb-ext:gc :gen generation))
                  (length kept))))
    (and (<= (heap-spare) 0)
         (progn (search-for-garbage) t)
         (< (heap-used) 150000000))))
