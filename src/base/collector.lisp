;;;; How often SBCL collects garbage, for processes that serve or call all day. The cost of a
;;;; collection is that of the objects that survive it and hardly depends on how much was consed
;;;; before, so fewer collections are less work.
;;;;
;;;; A process that has been idle for a while gives memory back (loop/watchdog.lisp sees when).
;;;; First it collects young objects and returns all free pages. Then, if it is still idle and the
;;;; gain is worth the time, it makes a full collection.
;;;;
;;;; A collection stops all threads while it copies the small objects that live on, half a second
;;;; for each gigabyte; long vectors stay where they are. Objects that are alive when the collector
;;;; is tuned count as old from then on; only full collections copy them.
;;;;
;;;; Invariant: nothing here happens unless the program asks for it; a library leaves its image as
;;;; it is.

(in-package #:clgrpc.base)

(defconstant +nursery-octets+ (* 200 1024 1024))

(declaim (type boolean **tuned**))
(defglobal **tuned** nil)

(defun set-release-generation (generation)
  "Let only collections of GENERATION and older ones give freed memory back to the system.
Return the generation it was, or nil if this SBCL has no such limit."
  (let ((limit (sb-sys:find-foreign-symbol-address "small_generation_limit"))) ; unsigned char
    (and limit
         (shiftf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) generation))))

(defun keep-free-memory ()
  "Let only full collections give freed memory back to the system. SBCL's do from the
second generation on, for which a process that had a gigabyte stands still for 60 ms, and 7 ms for
each 16 MB that it then faults in again."
  (set-release-generation sb-vm:+highest-normal-generation+))

(declaim (type heap-octets **live**))
(defglobal **live** 0)                  ; what was allocated after the last full collection of ours

(defun tune-collector ()
  "Make this process collect garbage more seldom, and keep the memory that it once had until a full
collection. For servers, and for clients with much to do; not for a library to call. Between two
collections 200 MB are consed, or a fifth of the heap if that is less; objects that are not old yet
may take a quarter of the heap more. Once no event loop of the process has had anything to do for
eight seconds, memory is given back; after eight more, a full collection may give back the rest.

This makes a full collection, half a second for each gigabyte that is alive, so that objects that
are alive already are not copied again: call it when the data is there that stays. From any
thread."
  (keep-free-memory)
  (setf (sb-ext:bytes-consed-between-gcs)
        (min +nursery-octets+ (floor (sb-ext:dynamic-space-size) 5))
        (sb-ext:generation-bytes-consed-between-gcs 1)
        (floor (sb-ext:dynamic-space-size) 4))
  (sb-ext:gc :full t)
  (setf **live** (heap-used)
        **tuned** t)
  nil)

;;; Giving back

(defconstant +worth-giving-octets+ (* 16 1024 1024)
  "Less garbage than that is left where it is.")
(defconstant +quickly-copied-octets+ (* 40 1024 1024)
  "So much is copied in 20 ms.")

(sb-ext:define-load-time-global **given-epoch** nil) ; of the last collection that gave back
(declaim (type heap-octets **given-used**))
(defglobal **given-used** 0)            ; what was allocated after it
(defun memory-to-give-p ()
  "True if GIVE-MEMORY-BACK would find something to give: the process was tuned, and has collected
garbage since the last time, or made some."
  (and **tuned**
       (or (not (eq **given-epoch** sb-kernel::*gc-epoch*))
           (> (heap-used) (+ **given-used** +worth-giving-octets+)))))

(defun note-given ()
  (setf **given-epoch** sb-kernel::*gc-epoch*
        **given-used** (heap-used)))

(defun give-memory-back ()
  "Collect what is young, and give all free pages back to the system, those of the store and of the
C library among them. From any thread without locks; all threads stand still meanwhile, 60 ms for
each gigabyte that is given back."
  (clear-store)
  (let ((before (set-release-generation 1)))
    (unwind-protect (sb-ext:gc :gen 2)
      (when before (set-release-generation before))))
  (let ((trim (sb-sys:find-foreign-symbol-address "malloc_trim")))
    (when trim
      (sb-alien:alien-funcall
       (sb-alien:sap-alien (sb-sys:int-sap trim) (function sb-alien:int sb-alien:unsigned-long))
       0)))
  (note-given))

(defun full-collection-due-p ()
  "True if a full collection is worth the time for which it stops all threads. If that is 20 ms at
most, the heap must be a quarter larger than after the last full collection; if it is longer, twice
as large. There must be room for the copies."
  (and **tuned**
       (let ((survey (recent-survey)))
         (and (> (heap-used)
                 (+ **live** (max +worth-giving-octets+
                                  (if (<= (survey-copied survey) +quickly-copied-octets+)
                                      (ash **live** -2)
                                      **live**))))
              (plusp (survey-spare survey))))))

(defun collect-everything ()
  "Make a full collection, and give all free pages back to the system. As GIVE-MEMORY-BACK."
  (sb-ext:gc :full t)
  (setf **live** (heap-used))
  (note-given))
