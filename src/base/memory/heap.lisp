;;;; The room left in the heap. SBCL's collector copies small objects, so it needs free pages; if it
;;;; finds none, the process ends. The collector leaves long vectors where they are, so a long
;;;; vector needs a hole of its own length. Between two collections SBCL looks for a hole only above
;;;; the places that it has already searched.
;;;;
;;;; Therefore memory counts as free if nothing was allocated in it since the last collection and it
;;;; is either above the last page in use or in a wide hole. SBCL's search has not passed a wide
;;;; hole, unless SBCL searched for an even longer vector.
;;;;
;;;; A thread that is about to allocate much asks for a promise first, and settles it when the
;;;; memory is allocated or is not needed any more. A promise is given if a fifth of the heap stays
;;;; free beyond all promises. That fifth is enough for objects consed until the next collection,
;;;; for the collection itself, and for memory without a promise, such as messages that user code
;;;; makes. Short messages need no promise. A promise for small objects, such as those of a message
;;;; that is decoded, is given if there is room for them and for the collector's copies of them.
;;;;
;;;; Invariant: promised octets are never counted as free. Once promised objects are allocated, they
;;;; even count twice until the promise is settled.

(in-package #:clgrpc.base)

(deftype heap-octets ()
  "A number of octets of the heap."
  '(unsigned-byte 48))

(define-condition heap-full (storage-condition)
  ((octets :initarg :octets :reader heap-full-octets)) ; the octets that had no room
  (:report (lambda (condition stream)
             (format stream "The heap has no room for ~D octets." (heap-full-octets condition))))
  (:documentation "The heap has no room for a long vector. Nothing was changed."))

(document-functions
  heap-full-octets "The number of octets for which the heap had no room.")

(defun heap-condition-p (condition)
  "True if CONDITION, ours or SBCL's, means that the heap has no room for an object."
  (or (typep condition 'heap-full)
      (let ((theirs (find-symbol "HEAP-EXHAUSTED-ERROR" '#:sb-kernel)))
        (and theirs (typep condition theirs)))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun known-pages-p ()
    "True if this SBCL has the table of the heap's pages in the form of SBCL 2.2.9 to 2.6.7."
    (and (member :gencgc *features*)
         (sb-sys:find-foreign-symbol-address "next_free_page")
         (boundp 'sb-vm:gencgc-page-bytes)
         (every (lambda (slot)
                  (ignore-errors
                   (integerp (sb-alien:slot (sb-alien:deref sb-vm:page-table 0) slot))))
                '(sb-vm::start sb-vm::flags sb-vm::gen))))

  (defun known-heap-p ()
    "True if this file also knows the internal allocation functions of this SBCL."
    (and (eql 0 (search "2.2.9" (lisp-implementation-version)))
         (member :x86-64 *features*)
         (known-pages-p)
         (every #'sb-sys:find-foreign-symbol-address
                '("gc_alloc_large" "bytes_allocated" "auto_gc_trigger")))))

(defmacro heap-extent ()
  "The number of octets of the heap up to the last page in use."
  (if (known-pages-p)
      `(* (sb-ext:truly-the (unsigned-byte 40)
                            (sb-alien:extern-alien "next_free_page" sb-alien:long))
          sb-vm:gencgc-page-bytes)
      `(sb-kernel:dynamic-usage)))

(define-hot heap-size () heap-octets
  "The maximum size of the heap in octets."
  (sb-ext:dynamic-space-size))

(define-hot heap-used () heap-octets
  "The number of octets that are allocated, including garbage."
  (sb-kernel:dynamic-usage))

(define-hot heap-tail () heap-octets
  "The number of octets of the heap above the last page in use."
  (max 0 (- (heap-size) (the heap-octets (heap-extent)))))

(define-hot heap-margin () heap-octets
  "The number of octets that other threads may allocate between a thread's check of the heap and its
allocation."
  (ash (heap-size) -4))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +uncopied-pages+ 4
    "The minimum number of pages of a vector that the collector does not copy (LARGE_OBJECT_SIZE in
gencgc.c)."))

(defconstant +uncopied-octets+ (* +uncopied-pages+ sb-vm:gencgc-page-bytes))

(defmacro used-pages ()
  "The number of pages up to the last page in use."
  '(floor (the heap-octets (heap-extent)) sb-vm:gencgc-page-bytes))

;;; Statistics of all pages; making them takes a tenth of a millisecond for each gigabyte

(defstruct (page-statistics (:copier nil))
  "The state of the pages of the heap at some moment."
  (epoch nil)                           ; the epoch of the last collection before that moment
  (used 0 :type heap-octets)            ; octets allocated then
  (wide 0 :type heap-octets)            ; free, in holes of a 32nd of the heap and more
  (copied 0 :type heap-octets)          ; octets that a full collection copies
  (spare 0 :type fixnum))               ; octets free at the worst moment of a full collection

(declaim (sb-ext:freeze-type page-statistics))

(defmacro page-slot (page slot)
  "SLOT of the entry of PAGE in the table of pages. An entry in a variable would cost two objects."
  `(sb-ext:truly-the (unsigned-byte 32)
                     (sb-alien:slot (sb-alien:deref sb-vm:page-table ,page) ',slot)))

(defmacro count-pages (used-pages generation)
  "Return three numbers for the pages below USED-PAGES: the number of free pages in wide holes, the
number of pages in use, and the number of pages that a collection of GENERATION and younger
generations copies."
  (if (known-pages-p)
      `(let ((single-object 16)         ; a flag of gencgc-internal.h
             (least-hole (floor (heap-size) (* 32 sb-vm:gencgc-page-bytes)))
             (oldest ,generation)
             (wide 0) (used 0) (copied 0) (hole 0)
             (alone 0))                 ; the pages of an object that shares its pages with no other
         (declare (type heap-octets least-hole wide used copied hole alone)
                  (type (unsigned-byte 8) oldest))
         (dotimes (page ,used-pages (values wide used copied))
           (let* ((flags (page-slot page sb-vm::flags))
                  (lonely (logtest single-object flags)))
             (unless (and lonely (plusp (page-slot page sb-vm::start)))
               (when (< alone +uncopied-pages+) (incf copied alone))
               (setf alone 0))
             (cond ((zerop flags) (incf hole))
                   (t (when (<= least-hole hole) (incf wide hole))
                      (setf hole 0)
                      (incf used)
                      (cond ((< oldest (page-slot page sb-vm::gen))) ; or pseudo-static
                            (lonely (incf alone))
                            (t (incf copied))))))))
      `(let ((used (ceiling (heap-used) sb-vm:gencgc-page-bytes)))
         ,generation
         (values 0 used used))))

(defun make-new-page-statistics ()
  "Return the present statistics of the heap. If the pages cannot be read, assume that they have no
holes and that everything would be copied."
  (let ((epoch sb-kernel::*gc-epoch*)
        (used (heap-used)))
    (multiple-value-bind (wide pages copied)
        (count-pages (used-pages) sb-vm:+highest-normal-generation+)
      (declare (type heap-octets wide pages copied))
      (make-page-statistics :epoch epoch :used used
                            :wide (+ (* wide sb-vm:gencgc-page-bytes) (heap-tail))
                            :copied (* copied sb-vm:gencgc-page-bytes)
                            :spare (- (heap-size) (* (+ pages copied) sb-vm:gencgc-page-bytes))))))

(declaim (type page-statistics **page-statistics**))
(sb-ext:define-load-time-global **page-statistics** (make-page-statistics))

(define-hot recent-page-statistics () page-statistics
  "Return page statistics that are still valid. They are valid if no garbage was collected, and
little was allocated, after they were made."
  (let ((page-statistics **page-statistics**))
    (if (and (eq sb-kernel::*gc-epoch* (page-statistics-epoch page-statistics))
             (< (abs (- (heap-used) (page-statistics-used page-statistics))) (ash (heap-size) -7)))
        page-statistics
        (setf **page-statistics** (make-new-page-statistics)))))

(defun young-octets ()
  "The number of octets of the heap, including garbage, that a collection of the youngest generation
may have to copy."
  (* sb-vm:gencgc-page-bytes
     (the heap-octets (nth-value 2 (count-pages (used-pages) 0)))))

(defun heap-spare ()
  "The number of octets of the heap that are free at the worst moment of a full collection. All
objects that are allocated now, including garbage, count as living. If the value is negative, a
collection fails."
  (page-statistics-spare (recent-page-statistics)))

(define-hot (collection-epoch :inline t) () t
  "Return an object that identifies the last collection. After each collection another object is
returned."
  (sb-ext:symbol-global-value 'sb-kernel::*gc-epoch*))

(define-hot hole-p ((octets heap-octets)) boolean
  "True if OCTETS can be allocated as long vectors before the next collection."
  (or (<= octets (heap-tail))
      (let ((page-statistics (recent-page-statistics)))
        (<= (+ octets (max 0 (- (heap-used) (page-statistics-used page-statistics))))
            (page-statistics-wide page-statistics)))))

;;; Promises

(declaim (type cons **promised**))
(defglobal **promised** (list 0))       ; octets; atomic

(define-hot objects-fit-p ((octets heap-octets) (before heap-octets)) boolean
  "True if the collector has room to copy OCTETS of small objects and the BEFORE octets that are
promised already, and a quarter of the heap remains, so that servers notice no memory pressure. A
promise is for the maximum number of octets that may be needed. Therefore, if no other promise
exists, no room for copies is required, but an eighth of the heap must remain."
  (<= (if (zerop before)
          (+ octets (ash (heap-size) -3))
          (+ (* 2 (+ before octets)) (ash (heap-size) -2)))
      (the fixnum (heap-spare))))

(define-hot promise-octets ((octets heap-octets)
                            &key (reserve-fifths (integer 1 4) 1) (copied boolean nil))
    boolean
  "Promise OCTETS of the heap to the caller, if RESERVE-FIFTHS fifths of the heap stay free beyond
all promises; otherwise return false. With COPIED the memory is for small objects, which the
collector copies. The caller must call SETTLE-OCTETS when the memory has been allocated, or will not
be allocated. From any thread."
  (let* ((before (atomic-incf (car **promised**) octets))
         (reserve (* reserve-fifths (floor (heap-size) 5)))
         (wanted (+ before octets reserve)))
    (declare (type heap-octets before reserve wanted))
    (cond ((if copied
               (objects-fit-p octets before)
               (and (<= (+ wanted (heap-used)) (heap-size))
                    (hole-p wanted)))
           t)
          (t (atomic-decf (car **promised**) octets)
             nil))))

(define-hot settle-octets ((octets heap-octets)) null
  "End a promise of OCTETS, whose memory has been allocated or will not be allocated. From any
thread."
  (atomic-decf (car **promised**) octets)
  nil)

;;; Collecting because there is no room

(declaim (type cons **claimed**))
(defglobal **claimed** (list 0))        ; octets that threads allocate at this moment; atomic

(declaim (type nanoseconds **next-collection**))
(defglobal **next-collection** 0)       ; COLLECT-FOR-ROOM collects nothing before this time

(defglobal **reclaimers** '())          ; functions that free memory which is kept for reuse

(defun room-for-copies-p (generation)
  "True if the heap has room for copies of all objects in GENERATION and in younger generations, and
for the objects that other threads allocate before they are stopped."
  (multiple-value-bind (wide used copied) (count-pages (used-pages) generation)
    (declare (ignore wide) (type heap-octets used copied))
    (<= (+ (* sb-vm:gencgc-page-bytes (+ used copied)) (ash (heap-margin) -1)
           (the heap-octets (car **claimed**)))
        (heap-size))))

(defun make-room-for-copies (oldest)
  "Collect one generation after the other, the youngest first, until the heap has room for copies of
all objects of the generation OLDEST and of younger generations. Each collection makes room for the
copies of the next. Return false if the heap has no such room afterwards."
  (loop for generation from 0 to sb-vm:+highest-normal-generation+
        until (room-for-copies-p oldest)
        always (room-for-copies-p generation)
        do (sb-ext:gc :gen generation)
        finally (return (room-for-copies-p oldest))))

(defun collect-for-room ()
  "Collect garbage, unless it was collected a short while ago. At most a fifth of the time is spent
on such collections, unless a collection takes longer than 50 ms: then 200 ms pass before the next.
If collecting young objects frees too little, all generations are collected, provided that the heap
has room for the copies. Call this from any thread that holds none of our locks."
  (let ((due **next-collection**)
        (start (monotonic-ns)))
    (when (and (<= due start)
               (eql due (compare-and-swap (symbol-value '**next-collection**)
                                          due (+ start +ns-per-second+))))
      (when (make-room-for-copies 2) (sb-ext:gc :gen 2))
      (when (and (not (and (<= (* 5 (heap-used)) (* 3 (heap-size)))
                           (hole-p (floor (* 2 (heap-size)) 5))
                           (<= (heap-size) (* 3 (heap-spare)))))
                 (< (the heap-octets (car **claimed**))
                    (page-statistics-spare (recent-page-statistics))))
        (mapc #'funcall **reclaimers**)
        (sb-ext:gc :full t))
      (let ((end (monotonic-ns)))
        (setf **next-collection** (+ end (min 200000000 (max 10000000 (* 4 (- end start))))))))
    nil))

(declaim (type nanoseconds **next-search**))
(defglobal **next-search** 0)           ; SEARCH-DUE-P is false before this time

(defun search-due-p ()
  "True, for one thread only, if enough time has passed for another collection of all garbage."
  (let ((now (monotonic-ns)) (due **next-search**))
    (and (<= due now)
         (eql due (compare-and-swap (symbol-value '**next-search**)
                                    due (+ now (* 60 +ns-per-second+)))))))

(defun search-for-garbage ()
  "Collect all garbage, as far as the heap has room for the copies. Afterwards SEARCH-DUE-P is false
for four times the duration of this collection. Call this from any thread that holds none of our
locks."
  (let ((start (monotonic-ns)))
    (make-room-for-copies sb-vm:+highest-normal-generation+)
    (when (plusp (heap-spare)) (sb-ext:gc :full t))
    (let ((end (monotonic-ns)))
      (setf **next-search** (+ end (* 4 (- end start))))))
  nil)

;;; Vectors without a promise

(define-hot fits-p ((octets heap-octets) (others heap-octets)) boolean
  "True if the collector has the room that it may need even when a vector of OCTETS, and OTHERS
octets of other threads, have been allocated."
  (let ((used (+ octets others (heap-used))))
    (declare (type heap-octets used))
    (or (<= used (ash (heap-size) -2))  ; fits even with waste on pages
        (and (<= (+ used (heap-margin)) (heap-size))
             (<= (if (< octets +uncopied-octets+)
                     ;; copies need holes, too; a copy of 50 KB leaves a quarter of two pages unused
                     (+ others (* 3 (+ octets (heap-margin))))
                     (+ others octets (ash (heap-margin) -1)))
                 (page-statistics-spare (recent-page-statistics)))))))

(define-hot fits-well-p ((octets heap-octets) (others heap-octets)) boolean
  "True if FITS-P is true and a hole for a vector of OCTETS surely exists."
  (and (fits-p octets others)
       (or (<= (heap-used) (ash (heap-size) -2))
           (hole-p (+ octets others)))))

(define-hot claim-octets ((octets heap-octets) (well boolean)) heap-octets
  "Claim room for a vector of OCTETS that this thread is about to allocate, if the heap has room for
it in addition to the claims of other threads. If WELL is true, a hole for the vector must surely
exist. Return OCTETS if they were claimed, else 0. The caller must subtract OCTETS from **CLAIMED**
when the vector has been allocated. Without claims, several threads could be given the same room at
the same time."
  (let ((others (atomic-incf (car **claimed**) octets)))
    (declare (type heap-octets others))
    (cond ((if well (fits-well-p octets others) (fits-p octets others)) octets)
          (t (atomic-decf (car **claimed**) octets)
             0))))

(defun collect-for-vector (octets)
  "Collect garbage to make room for a vector of OCTETS. If the last collection was too recent, wait
until another collection is allowed, because the vector cannot be allocated without it."
  (loop repeat 2
        do (collect-for-room)
        until (fits-well-p octets (car **claimed**))
        do (sleep (ns-seconds (max 0 (min 200000000 (- **next-collection** (monotonic-ns))))))))

(defun call-with-claim (octets function)
  "Call FUNCTION, which allocates a vector of OCTETS, and return its value; signal HEAP-FULL if the
heap has no room for it even after a collection."
  (declare (type heap-octets octets) (type function function))
  (let ((claimed 0))
    (declare (type heap-octets claimed))
    (flet ((claim (well)
             (plusp (sb-sys:without-interrupts
                      (setf claimed (claim-octets octets well))))))
      (unwind-protect
           (progn (unless (claim t)
                    (collect-for-vector octets)
                    ;; now also a hole that is not wide suffices
                    (unless (claim nil) (error 'heap-full :octets octets)))
                  (funcall function))
        (atomic-decf (car **claimed**) claimed)))))
