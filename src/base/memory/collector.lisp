;;;; How often SBCL collects garbage, for processes that serve or call all day. The cost of a
;;;; collection is that of the objects that survive it and hardly depends on how much was consed
;;;; before, so fewer collections are less work. But all memory that is consed between two
;;;; collections is written: a process that was idle must get this memory from the system again, and
;;;; the more memory is written, the less of it is in the processor's caches. So the nursery, the
;;;; octets consed between two collections, has 64 MB, or 200 MB while collections take more than a
;;;; hundredth of the time. A process that keeps what it conses (a large table whose entries are
;;;; replaced) has long collections, for which all threads wait, and a larger nursery makes them
;;;; longer. So the nursery of such a process becomes smaller while collections take less than a
;;;; two-hundredth of the time.
;;;;
;;;; A process that has little to do gives memory back (loop/threads/watchdog.lisp calls these
;;;; functions). A process that conses little is QUIET; a process without work is idle. In both
;;;; states it collects young objects and returns all free pages; then, if the gain is worth the
;;;; time, it makes a full collection. A quiet process makes the full collection only if that takes
;;;; at most 20 ms. Free pages are returned by STEPS of about a millisecond, each with the world
;;;; stopped, and between two steps other threads run. SBCL would return all free pages at the end
;;;; of a collection; for a gigabyte of them the process would stop for 60 ms.
;;;;
;;;; A collection stops all threads while it copies the small objects that survive, which takes half
;;;; a second for each gigabyte; long vectors are not moved. Objects that are alive when the
;;;; collector is tuned count as old from then on; only full collections copy them.
;;;;
;;;; A process whose peers make it hold much memory collects early (account.lisp), and living
;;;; objects count as old at once. Otherwise these objects would be copied once more, in a single
;;;; pause with the survivors of two later collections. Old objects are collected in a separate
;;;; pause, if possible while little memory is held: then few old objects are alive.
;;;;
;;;; Invariant: the collector's settings change only if the program calls TUNE-COLLECTOR; a library
;;;; does not change the settings of its program.

(in-package #:clgrpc.base)

(defconstant +nursery-octets+ (+ 32768 (* 64 1024 1024))
  "The number of octets allocated between two collections at first, and while collections are quick
and rare.")
(defconstant +most-nursery-octets+ (+ 32768 (* 200 1024 1024))
  "The number of octets allocated between two collections while collections take much of the time.")
(defconstant +least-nursery-octets+ (* 8 1024 1024)
  "The number of octets allocated between two collections while each collection takes long.")
(defconstant +long-collection-ns+ 10000000
  "If a collection takes longer than this, a smaller nursery should make collections shorter.")
(defconstant +young-octets+ (* 64 1024 1024)
  "The maximum size of the objects that have survived one or two collections and do not count as old
yet, with a nursery of +NURSERY-OCTETS+. The next collection copies them, which takes a fifteenth of
a second.")

(defconstant +much-data-octets+ (* 256 1024 1024)
  "If more octets than this are alive, the first nursery is small, because collections are long.")

(declaim (type boolean **tuned**))
(defglobal **tuned** nil)

(defun set-release-generation (generation)
  "Restrict the return of freed memory to the system to collections of generations above GENERATION,
if this SBCL has such a limit."
  (let ((limit (sb-sys:find-foreign-symbol-address "small_generation_limit"))) ; unsigned char
    (when limit
      (setf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) generation))))

(defun keep-free-memory ()
  "Restrict the return of freed memory to the system to full collections. By default SBCL returns
freed memory from the second generation on, and faulting it in again takes 7 ms for each 16 MB."
  (set-release-generation sb-vm:+highest-normal-generation+))

(declaim (type heap-octets **live** **nursery**))
(defglobal **live** 0)                  ; octets allocated after our last full collection
(defglobal **nursery** 0)               ; the size that this file last gave to the nursery, a number
                                        ; that no user would choose

(defun most-nursery ()
  "The maximum number of octets that the heap allows between two collections."
  (floor (sb-ext:dynamic-space-size) 10))

(defun set-nursery (octets)
  "Make a collection begin after OCTETS of new objects, or a tenth of the heap if that is less;
limit the survivors that are copied at once to the same number. The new size applies after the next
collection."
  (setf **nursery** (min octets (most-nursery))
        ;; not by (SETF BYTES-CONSED-BETWEEN-GCS): that form in SBCL 2.6.4 changes the next
        ;; collection as well, and signals an error if that collection is overdue with the new size
        (sb-alien:extern-alien "bytes_consed_between_gcs" sb-alien:unsigned-long) **nursery**
        (sb-ext:generation-bytes-consed-between-gcs 1)
        (min octets +young-octets+ (floor (sb-ext:dynamic-space-size) 16))))

(defun nursery-ours-p ()
  "True unless the user has set another size of the nursery."
  (= **nursery** (sb-ext:bytes-consed-between-gcs)))

(defun set-collector (&key (nursery t))
  "Make the settings of TUNE-COLLECTOR; set the nursery only if NURSERY is true."
  (keep-free-memory)
  (when nursery (set-nursery +nursery-octets+))
  (setf ;; an object is copied once
        (sb-ext:generation-number-of-gcs-before-promotion 1) 0
        (sb-ext:generation-bytes-consed-between-gcs 2)
        (floor (sb-ext:dynamic-space-size) 8)))

(defun tune-collector ()
  "Make this process collect garbage less often, and keep its memory until a full collection.
Servers, and clients with much work, should call this function; a library should not. The process
allocates 64 MB between two collections at first. This size is then adapted to the time that
collections take. It becomes 200 MB when they take more than 1 % of the time (2 % if one takes more
than 10 ms). It shrinks, to 8 MB at least, when they take less than 0.5 % of the time but one takes
more than 10 ms. It is never more than a tenth of the heap. A size that the user sets afterwards
stays. Objects that have survived one or two collections are collected again when they have grown
by as many octets as are allocated between two collections, but at most 64 MB. Older objects are
collected again when they have grown by an eighth of the heap. The process returns memory to the
system when it has allocated less than 4 MB a second for five seconds, or when its event loops have
had no work for eight seconds. It returns memory in steps that stop other threads for at most 10
ms. TUNE-COLLECTOR makes a full collection, which takes half a second for each living gigabyte.
Objects that survive it are not copied again, so call this function when the permanent data has
been loaded. If more than 256 MB survive, not counting the objects of a saved image, the process
allocates 8 MB between two collections at first. An image that is saved afterwards begins tuned.
From any thread."
  (set-collector)
  (sb-ext:gc :full t)
  (when (< +much-data-octets+
           (loop for generation to sb-vm:+highest-normal-generation+
                 sum (sb-ext:generation-bytes-allocated generation)))
    (set-nursery +least-nursery-octets+)
    (sb-ext:gc))                        ; it finds hardly any garbage; the new size applies after it
  (setf **live** (heap-used)
        **tuned** t)
  nil)

(defun set-collector-again ()
  "In a new process of a tuned image, make the settings again, because SBCL starts with its own
settings. If the user has set a size of the nursery in the new process, keep this size."
  (when **tuned**
    (set-collector :nursery (= (sb-ext:bytes-consed-between-gcs)
                               (floor (sb-ext:dynamic-space-size) 20))))) ; SBCL's size

(pushnew 'set-collector-again sb-ext:*init-hooks*)

;;; Early collections

(declaim (type heap-octets **promoted**) (type double-float **least-age**))
(defglobal **promoted** 0)              ; octets that COLLECT-YOUNG has made old since COLLECT-OLD
(defglobal **least-age** 0.75d0)        ; the least age at which the old generation is collected

(defun collect-to-old (least-age)
  "Collect the young objects; the survivors are old. Collect the old generation as well if it has
grown enough and its age is at least LEAST-AGE."
  (setf (sb-ext:generation-minimum-age-before-gc 2) least-age)
  (unwind-protect (sb-ext:gc :gen 2)
    (setf (sb-ext:generation-minimum-age-before-gc 2) **least-age**)))

(defun collect-young ()
  "Collect the young objects and make the survivors old, without collecting old objects."
  (let ((before (sb-ext:generation-bytes-allocated 2)))
    (collect-to-old most-positive-double-float)
    (incf **promoted** (max 0 (- (sb-ext:generation-bytes-allocated 2) before)))))

(defun collect-old ()
  "Collect the objects that early collections have made old."
  (setf **promoted** 0)
  (collect-to-old 0d0))

;;; Giving back

(defconstant +worth-giving-octets+ (* 16 1024 1024)
  "The minimum number of octets of garbage for which memory is given back.")
(defconstant +quickly-copied-octets+ (* 40 1024 1024)
  "The number of octets that a collection copies in 20 ms.")

(sb-ext:define-load-time-global **given-epoch** nil) ; the epoch of the last collection that gave
                                                     ; memory back
(declaim (type heap-octets **given-used**))
(defglobal **given-used** 0)            ; octets allocated after the collection of **GIVEN-EPOCH**
(defun memory-to-give-p ()
  "True if GIVE-MEMORY-BACK would return pages, which is so if the process was tuned, and has
collected or made garbage since the last GIVE-MEMORY-BACK."
  (and **tuned**
       (or (not (eq **given-epoch** sb-kernel::*gc-epoch*))
           (> (heap-used) (+ **given-used** +worth-giving-octets+)))))

(defun note-given ()
  (setf **given-epoch** sb-kernel::*gc-epoch*
        **given-used** (heap-used)))

(defconstant +step-octets+ (* 4 1024 1024)
  "The length in octets of the ranges in which free pages are returned; a range takes a quarter of a
millisecond.")
(defconstant +step-ns+ 1000000
  "The time in nanoseconds after which a step ends when it has finished the present range.")
(defconstant +pause-seconds+ 0.005
  "The time in seconds for which other threads run between two steps.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun stoppable-world-p ()
    "True if WITH-STOPPED-WORLD can stop the threads in this SBCL."
    (and (known-pages-p) (sb-sys:find-foreign-symbol-address "try_acquire_gc_lock") t)))

(defmacro with-stopped-world (&body body)
  "Do BODY, which must neither allocate nor signal, while all other threads stand still, unless
garbage is being collected. Return true if BODY was done. Use this only if STOPPABLE-WORLD-P is
true."
  (if (stoppable-world-p)
      (flet ((call (name)
               `(sb-alien:alien-funcall (sb-alien:extern-alien ,name (function sb-alien:int)))))
        `(sb-sys:without-interrupts
           (sb-sys:without-gcing
             (when (= 1 ,(call "try_acquire_gc_lock"))
               ,(call "gc_stop_the_world")
               (progn ,@body)
               ,(call "gc_start_the_world")
               ,(call "release_gc_lock")
               t))))
      '(progn nil)))

(defmacro return-pages (first end)
  "Return the free pages among those from FIRST to END to the system."
  (if (known-pages-p)
      `(let ((page ,first))
         (declare (type heap-octets page))
         (flet ((free-p (page)
                  (or (<= used-pages page)
                      (zerop (page-slot page sb-vm::flags)))))
           (declare (inline free-p))
           (loop while (< page ,end)
                 do (let ((start page))
                      (declare (type heap-octets start))
                      (loop while (and (< page ,end) (free-p page)) do (incf page))
                      (when (< start page)
                        (sb-alien:alien-funcall
                         (sb-alien:extern-alien "madvise"
                                                (function sb-alien:int sb-alien:unsigned-long
                                                          sb-alien:unsigned-long sb-alien:int))
                         (+ sb-vm:dynamic-space-start
                            (* start sb-vm:gencgc-page-bytes))
                         (* (- page start) sb-vm:gencgc-page-bytes)
                         4))            ; MADV_DONTNEED
                      (loop while (and (< page ,end) (not (free-p page))) do (incf page))))))
      nil))

(defun return-some-pages (page)
  "Return free pages of the heap to the system, beginning at PAGE, for some milliseconds. Return the
page at which to continue, or nil after the last page."
  (declare (type heap-octets page) (optimize speed) (sb-ext:muffle-conditions sb-ext:compiler-note))
  (let ((last (floor (heap-size) sb-vm:gencgc-page-bytes))
        (step (floor +step-octets+ sb-vm:gencgc-page-bytes))
        (due (+ (monotonic-ns) +step-ns+)))
    (declare (type heap-octets last step))
    (with-stopped-world
      (let ((used-pages (floor (the heap-octets (heap-extent)) sb-vm:gencgc-page-bytes)))
        (declare (type heap-octets used-pages) (ignorable used-pages))
        (loop
          (let ((end (min last (+ page step))))
            (return-pages page end)
            (setf page end)
            (when (or (= page last) (< due (monotonic-ns))) (return))))))
    (if (< page last) page nil)))

(defun return-free-pages ()
  "Return all free pages of the Lisp heap and of the C library to the system; if the world cannot be
stopped, only the pages of the C library."
  (when (stoppable-world-p)
    (loop with page = 0
          do (setf page (return-some-pages page))
          while page
          do (sleep +pause-seconds+)))
  (let ((trim (sb-sys:find-foreign-symbol-address "malloc_trim")))
    (when trim
      (sb-alien:alien-funcall
       (sb-alien:sap-alien (sb-sys:int-sap trim) (function sb-alien:int sb-alien:unsigned-long))
       0)))
  (note-given))

(declaim (type unsigned-byte **time-aside**))
(defglobal **time-aside** 0)            ; see COLLECT-ASIDE

(defun collect-aside (&rest arguments)
  "Collect garbage, with the ARGUMENTS of GC, in a process that has nothing else to do. The time is
added to **TIME-ASIDE**, in the unit of *GC-RUN-TIME*, so that FIT-NURSERY does not count it."
  (let ((before sb-ext:*gc-run-time*))
    (apply #'sb-ext:gc arguments)
    (incf **time-aside** (max 0 (- sb-ext:*gc-run-time* before)))))

(defun give-memory-back ()
  "Collect the young objects, and return all free pages, including those of the octet store, to the
system. Call this from any thread that holds no lock. All threads stop while young, living objects
are copied; after that they stop several times for some milliseconds."
  (clear-store)
  ;; the first work after this must get all memory that it uses from the system
  (when (and (nursery-ours-p) (< +nursery-octets+ **nursery**))
    (set-nursery +nursery-octets+))
  (collect-aside :gen 2)
  (return-free-pages))

(defun full-collection-due-p (&key quick)
  "True if a full collection is worth the time for which it stops all threads. If the collection
takes 20 ms at most, the heap must be a quarter larger than after the last full collection. If it
takes longer, the value is false with QUICK; without QUICK the heap must be twice as large as after
the last full collection. In each case the heap must have room for the copies."
  (and **tuned**
       (let* ((page-statistics (recent-page-statistics))
              (quickly (<= (page-statistics-copied page-statistics) +quickly-copied-octets+)))
         (and (or quickly (not quick))
              (> (heap-used)
                 (+ **live** (max +worth-giving-octets+ (if quickly (ash **live** -2) **live**))))
              (plusp (page-statistics-spare page-statistics))))))

(defun collect-everything ()
  "Make a full collection, and return all free pages to the system. The restrictions on the caller
and the pauses are those of GIVE-MEMORY-BACK."
  (collect-aside :full t)
  (setf **live** (heap-used))
  (return-free-pages))

(defun due-collection ()
  "Return the function by which an idle process returns memory: GIVE-MEMORY-BACK if it would return
pages, else COLLECT-EVERYTHING if a full collection is worth the time, else nil."
  (cond ((memory-to-give-p) #'give-memory-back)
        ((full-collection-due-p) #'collect-everything)))

;;; Quiet periods

(defconstant +quiet-ns+ (* 5 +ns-per-second+)
  "The time in nanoseconds for which a process must allocate little to count as quiet.")
(defconstant +quiet-octets+ (* 20 1024 1024)
  "The maximum number of octets that a quiet process allocates in +QUIET-NS+.")

(defstruct (quiet-period (:copier nil) (:predicate nil))
  "A period in which the process has allocated little. One thread checks this now and then."
  (since-ns 0 :type nanoseconds)        ; when the time of little consing began
  (used 0 :type heap-octets)            ; octets allocated then
  (epoch nil))                          ; the epoch of the last collection before SINCE-NS

(defun quiet-p (quiet-period)
  "True if the process has allocated little for +QUIET-NS+. When the value is true, the next period
begins."
  (let ((now (monotonic-ns)) (used (heap-used)))
    (flet ((begin ()
             (setf (quiet-period-since-ns quiet-period) now
                   (quiet-period-used quiet-period) used
                   (quiet-period-epoch quiet-period) (collection-epoch))))
      (cond ((not (and (eq (collection-epoch) (quiet-period-epoch quiet-period))
                       (<= used (+ (quiet-period-used quiet-period) +quiet-octets+))))
             (begin)
             nil)
            ((< now (+ (quiet-period-since-ns quiet-period) +quiet-ns+)) nil)
            (t (begin)
               t)))))

(defun give-back-if-quiet (quiet-period)
  "If the process is quiet, and has memory to return to the system, return it as GIVE-MEMORY-BACK
does. For QUIET-PERIOD see QUIET-P."
  (when (and (quiet-p quiet-period) (memory-to-give-p))
    (give-memory-back)
    (when (full-collection-due-p :quick t) (collect-everything))))

;;; The size of the nursery

(defun fitting-nursery (octets share ns)
  "Return the new size for a nursery of OCTETS if collections take SHARE, a real, of the time, and
one collection takes NS. Half the nursery at most doubles the share of time; the largest nursery
reduces that share to a third. Twice the nursery at most doubles the time of one collection.
Therefore a nursery that was doubled because its collections are short is not halved again at once."
  (let ((long (< +long-collection-ns+ ns)) (larger (< +nursery-octets+ octets)))
    (cond ((< 1/100 share)
           (cond ((and long (<= share 1/50)) octets)
                 ((< octets +nursery-octets+) (min +nursery-octets+ (* 2 octets)))
                 (t +most-nursery-octets+)))
          (larger (if (< share (if long 1/200 1/400)) +nursery-octets+ octets))
          (long (if (< share 1/200) (max +least-nursery-octets+ (ash octets -1)) octets))
          ((< (* 2 ns) +long-collection-ns+) (min +nursery-octets+ (* 2 octets)))
          (t octets))))

(defstruct (collector-watch (:copier nil) (:predicate nil))
  "The data of a thread that calls RETUNE-COLLECTOR now and then."
  (quiet-period (make-quiet-period) :type quiet-period :read-only t) ; see QUIET-P
  (ns 0 :type nanoseconds)              ; when the thread last found that garbage had been collected
  (run-time 0 :type integer)            ; *GC-RUN-TIME* at NS, less **TIME-ASIDE**
  (consed 0 :type integer)             ; the octets that the process had consed by NS
  (epoch nil))                          ; the epoch of the last collection before

(document-functions
  make-collector-watch "Return a new watch for RETUNE-COLLECTOR, without data so far.")

(defun fit-nursery (watch)
  "If garbage was collected since the last call with WATCH, adapt the nursery, unless the user has
set another size."
  (let ((now (monotonic-ns)) (run-time (- sb-ext:*gc-run-time* **time-aside**))
        (consed (sb-ext:get-bytes-consed)) (epoch (collection-epoch)))
    (unless (eq epoch (collector-watch-epoch watch))
      (when (and (collector-watch-epoch watch) (nursery-ours-p))
        (let* ((ns (seconds-ns (/ (max 0 (- run-time (collector-watch-run-time watch)))
                                  internal-time-units-per-second)))
               (share (/ ns (max 1 (- now (collector-watch-ns watch)))))
               ;; SBCL does not count collections
               (count (max 1 (floor (- consed (collector-watch-consed watch)) **nursery**)))
               (octets (min (fitting-nursery **nursery** share (/ ns count)) (most-nursery))))
          (unless (= octets **nursery**) (set-nursery octets))))
      (setf (collector-watch-ns watch) now
            (collector-watch-run-time watch) run-time
            (collector-watch-consed watch) consed
            (collector-watch-epoch watch) epoch))))

(defun retune-collector (watch)
  "In a tuned process adapt the nursery to the time that collections take, and give memory back if
the process is quiet. Call this several times a second, with the same WATCH, from one thread that
holds no lock. This may stop all threads, see GIVE-MEMORY-BACK."
  (when **tuned**
    (fit-nursery watch)
    (give-back-if-quiet (collector-watch-quiet-period watch))))
