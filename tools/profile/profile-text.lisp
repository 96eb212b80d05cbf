;;;; A profile as text, and two of them side by side.

(in-package #:clgrpc.profile)

(defun write-rows (stream titles rows)
  "Write ROWS, lists of strings, below TITLES, in columns; all columns but the first are aligned to
the right. Control characters are escaped, because the process chooses the names of threads and
functions."
  (let* ((rows (loop for row in rows collect (mapcar #'printable-text row)))
         (widths (apply #'mapcar (lambda (&rest column) (reduce #'max column :key #'length))
                        titles rows)))
    (dolist (row (cons titles rows))
      (format stream "  ~VA~{  ~V@A~}~%" (first widths) (first row)
              (mapcan #'list (rest widths) (rest row))))
    (terpri stream)))

(defun percent (share) (format nil "~,1F %" (* 100 share)))

(defun microseconds (ns)
  (if ns (format nil "~,3F" (/ ns 1d3)) "-"))

(defun milliseconds (ns)
  (if ns (format nil "~,1F" (/ ns 1d6)) "-"))

(defun event-cells (&rest names)
  "A function from a row of events to its cells for the members NAMES: texts, counts and times."
  (lambda (row)
    (loop for name in names
          for value = (member-of row name)
          collect (cond ((member name '("name" "lock") :test #'string=) (or value ""))
                        ((member name '("ns" "longestNs") :test #'string=) (milliseconds value))
                        (t (figure value))))))

(defun figure (number)
  (cond ((null number) "-")
        ((integerp number) (format nil "~:D" number))
        ((>= number 10000) (format nil "~:D" (round number)))
        ((>= number 100) (format nil "~,1F" number))
        (t (format nil "~,3F" number))))

(defun first-rows (rows most)
  (coerce (subseq rows 0 (min most (length rows))) 'list))

(defun write-cpu-rows (stream title rows)
  (write-rows stream (list title "share" "ms" "µs/call")
              (map 'list (lambda (row)
                           (list (member-of row "name") (percent (member-of row "share"))
                                 (milliseconds (member-of row "ns"))
                                 (microseconds (member-of row "nsPerCall"))))
                   rows)))

(defun phases-in-order (rows)
  (sort (copy-seq rows) #'<
        :key (lambda (row)
               (or (position (member-of row "name") *phase-order* :test #'string=) 100))))

(defun total-ns (rows)
  (reduce #'+ rows :key (lambda (row) (member-of row "ns"))))

(defun write-cpu (stream profile)
  (let* ((cpu (member-of profile "cpu"))
         (kernel-ns (member-of cpu "kernelNs"))
         (switches (+ (member-of cpu "slept") (member-of cpu "preempted")))
         (calls (member-of cpu "calls")))
    (format stream "The kernel counted ~A ms of CPU in ~,2F s~@[, ~A µs for each of ~:D calls~].~%"
            (milliseconds kernel-ns) (member-of cpu "seconds")
            (and calls (plusp calls) (microseconds (/ kernel-ns calls)))
            calls)
    (if (string= "perf" (member-of cpu "source"))
        (format stream "~:D samples cover ~A of it; another ~A passed between samples, in ~:D ~
                        switches of thread.~%"
                (member-of cpu "samples")
                (percent (share (member-of cpu "sampledNs") kernel-ns))
                (percent (share (member-of cpu "betweenNs") kernel-ns))
                switches)
        (format stream "~:D samples by ~A divide it among functions; ~:D switches of thread.~%"
                (member-of cpu "samples") (member-of cpu "source") switches))
    (format stream "Explained: ~A of the samples; ~:D of ~:D frames are unknown (~A).~2%"
            (percent (member-of cpu "explained"))
            (member-of cpu "unknownFrames") (member-of cpu "frames")
            (percent (share (member-of cpu "unknownFrames") (member-of cpu "frames"))))
    (write-cpu-rows stream "subsystem" (member-of cpu "areas"))
    (write-cpu-rows stream "phase of a call" (phases-in-order (member-of cpu "phases")))
    (format stream " The phases add up to ~A of the kernel's count.~2%"
            (percent (share (total-ns (member-of cpu "phases")) kernel-ns)))
    (when (plusp (length (member-of cpu "userFunctions")))
      (write-rows stream '("function of yours" "share with callees" "with callees, ms" "itself, ms")
                  (mapcar (lambda (row)
                            (list (member-of row "name") (percent (member-of row "share"))
                                  (milliseconds (member-of row "wholeNs"))
                                  (milliseconds (member-of row "ns"))))
                          (first-rows (member-of cpu "userFunctions") 15))))
    (write-rows stream '("function" "share" "µs/call" "with callees, ms")
                (mapcar (lambda (row)
                          (list (member-of row "name") (percent (member-of row "share"))
                                (microseconds (member-of row "nsPerCall"))
                                (milliseconds (member-of row "wholeNs"))))
                        (first-rows (member-of cpu "functions") 30)))
    (write-cpu-rows stream "thread" (member-of cpu "threads"))))

(defun write-events (stream events)
  (write-rows stream '("system call" "count" "per call" "failed" "ms" "longest ms")
              (map 'list (event-cells "name" "count" "perCall" "failed" "ns" "longestNs")
                   (member-of events "systemCalls")))
  (when (member-of events "slept")
    (format stream "  Switches of thread: ~:D slept, ~:D were preempted~@[, ~A a call~].~2%"
            (member-of events "slept") (member-of events "preempted")
            (and (member-of events "switchesPerCall")
                 (figure (member-of events "switchesPerCall")))))
  (when (plusp (length (member-of events "sleeps")))
    (write-rows stream '("sleeps, off the processor" "count" "per call" "ms" "longest ms")
                (mapcar (event-cells "name" "count" "perCall" "ns" "longestNs")
                        (first-rows (member-of events "sleeps") 15))))
  (when (plusp (length (member-of events "futexes")))
    (write-rows stream '("waits on a lock or condition" "on which" "count" "ms" "longest ms")
                (map 'list (event-cells "name" "lock" "count" "ns" "longestNs")
                     (member-of events "futexes")))))

(defun write-counters (stream counters)
  (write-rows stream '("counted by the process" "")
              (loop for (title name) in '(("calls" "calls") ("turns of its loops" "turns")
                                          ("batons lent to user code" "batonLent")
                                          ("batons taken over" "batonTakenOver")
                                          ("octets consed" "consed")
                                          ("octets consed a call" "octetsPerCall")
                                          ("collections" "collections"))
                    collect (list title (figure (member-of counters name)))))
  (format stream "  Collections stopped the threads for ~A ms in all, the longest so far ~A ms.~2%"
          (milliseconds (member-of counters "collectionNs"))
          (milliseconds (member-of counters "longestCollectionNs"))))

(defun write-octets (stream title rows most)
  (write-rows stream (list title "octets a call")
              (mapcar (lambda (row)
                        (list (member-of row "name") (figure (member-of row "octetsPerCall"))))
                      (first-rows rows most))))

(defun write-allocation (stream allocation)
  (write-octets stream "allocated, by function, as sampled" (member-of allocation "functions") 10))

(defun write-histogram (stream heap-histogram)
  (write-octets stream "allocated, by subsystem" (member-of heap-histogram "areas") 20)
  (write-rows stream '("allocated, by kind" "octets a call" "objects a call")
              (mapcar (lambda (row)
                        (list (member-of row "name") (figure (member-of row "octetsPerCall"))
                              (figure (member-of row "objectsPerCall"))))
                      (first-rows (member-of heap-histogram "kinds") 20)))
  (format stream "  ~A octets a call were consed meanwhile.~2%"
          (figure (member-of heap-histogram "octetsPerCall"))))

(defun profile-title (profile)
  "The subject of PROFILE: a command that was started for it, or a process that ran."
  (if-let ((command (coerce (member-of profile "command") 'list)))
    (format nil "Profile of clgrpc ~{~A~^ ~}" command)
    (format nil "Profile~@[ of process ~D~]" (member-of profile "pid"))))

(defun write-missing (stream profile)
  "Write to STREAM which parts of PROFILE are missing, and why."
  (let ((lines (member-of profile "unseen")))
    (when (plusp (length lines))
      (format stream "Not seen:~%~{  - ~A.~%~}" (coerce lines 'list)))))

(defun write-profile (profile stream)
  "Write PROFILE, which the function PROFILE has returned, to STREAM as text."
  (format stream "~A~@[ under ~A~].~2%" (printable-text (profile-title profile))
          (and (member-of profile "load") (printable-text (member-of profile "load"))))
  (write-cpu stream profile)
  (flet ((write-part (name function)
           (when (member-of profile name) (funcall function stream (member-of profile name)))))
    (write-part "events" #'write-events)
    (write-part "counters" #'write-counters)
    (write-part "allocation" #'write-allocation)
    (write-part "heapHistogram" #'write-histogram))
  (write-missing stream profile))

(defparameter *longest-profile* (expt 2 27)
  "The maximum number of octets of a file with a profile.")

(defun parse-profile (text)
  "The profile that TEXT contains in JSON. Each frame of a stack takes two levels of the JSON;
perf's stacks have at most 127 frames."
  (parse-json text :max-depth 1000 :max-length *longest-profile*))

(defun read-profile (path)
  "The profile in the file at PATH, JSON that `clgrpc profile` has written."
  (let ((data (handler-case (parse-profile (file-octets path :most *longest-profile*))
                (clgrpc-error (error) (fail "~A: ~A" path error))
                (error (error) (fail "~A cannot be read: ~A" path (bounded-text error))))))
    (unless (member-of data "clgrpcProfile") (fail "~A is not a profile" path))
    data))
